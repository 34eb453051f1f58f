// Activations as 8-bit codes. See README.md.
#include "common.cuh"

__device__ inline float taken(const float* x, const int* columns, int cols, int i) {
    return x[(size_t)blockIdx.x * cols + (columns ? columns[i] : i)];
}

// The largest magnitude of a token over 127, in every thread.
__device__ inline float scale_of(const float* x, const int* columns, int cols, int n) {
    __shared__ unsigned room[WARP];
    unsigned top = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = max(top, magnitude(taken(x, columns, cols, i)));
    return __uint_as_float(block_max(top, room)) / 127.0f;
}

KERNEL(quantize_8, (const float* x, const int* columns, signed char* codes, float* scales, int cols, int n, int stride,
                    int mode, float fixed)) {
    const float scale = mode == 0 ? scale_of(x, columns, cols, n) : mode == 1 ? scales[blockIdx.x] : fixed;
    if (mode != 1 && threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (int i = threadIdx.x; i < stride; i += blockDim.x) {
        codes[(size_t)blockIdx.x * stride + i] = i < n ? code_8(taken(x, columns, cols, i), scale) : 0;
    }
}

KERNEL(row_scales, (const float* x, const int* columns, float* scales, int cols, int n)) {
    const float scale = scale_of(x, columns, cols, n);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

KERNEL(span_scales, (float* scales, const int* starts)) {
    __shared__ unsigned room[WARP];
    const int start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    unsigned top = 0;
    for (int i = start + threadIdx.x; i < end; i += blockDim.x) top = max(top, magnitude(scales[i]));
    const float scale = __uint_as_float(block_max(top, room));
    for (int i = start + threadIdx.x; i < end; i += blockDim.x) scales[i] = scale;
}

KERNEL(widen_8, (const signed char* codes, const float* scales, float* out, int n, int stride)) {
    for (int c = blockIdx.y * COLUMNS + threadIdx.x; c < min((int)(blockIdx.y + 1) * COLUMNS, n); c += blockDim.x) {
        out[(size_t)blockIdx.x * n + c] = (float)codes[(size_t)blockIdx.x * stride + c] * scales[blockIdx.x];
    }
}
