// 8-bit weights times 8-bit activations, summed in integers. See README.md.
#include "common.cuh"

struct Product {
    const signed char* x;
    const float* x_scales;
    const signed char* codes;
    const void* scales;
    int half_scales;
    const float* bias;
    float* out;
    int tokens, rows, row_bytes, out_stride, accumulate;

    __device__ void write(int token, int row, int sum) const {
        const float scale = half_scales ? __half2float(((const __half*)scales)[row]) : ((const float*)scales)[row];
        float v = (float)sum * scale * x_scales[token];
        float* o = out + (size_t)token * out_stride + row;
        if (accumulate) v = *o + v;
        if (bias) v += bias[row];
        *o = v;
    }
};

#define PRODUCT                                                                                                         \
    const signed char *x, const float *x_scales, const signed char *codes, const void *scales, int half_scales,         \
        const float *bias, float *out, int tokens, int rows, int row_bytes, int out_stride, int accumulate
#define THE_PRODUCT \
    Product { x, x_scales, codes, scales, half_scales, bias, out, tokens, rows, row_bytes, out_stride, accumulate }

__device__ inline int dot(uint4 a, uint4 b, int sum) {
    sum = __dp4a((int)a.x, (int)b.x, sum);
    sum = __dp4a((int)a.y, (int)b.y, sum);
    sum = __dp4a((int)a.z, (int)b.z, sum);
    return __dp4a((int)a.w, (int)b.w, sum);
}

// A warp takes R rows, a lane every 32nd chunk of 16 columns.
template <int T, int R>
__device__ void gemv(const Product& p) {
    const int lane = threadIdx.x % WARP;
    const int first = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * R;
    int sums[R][T] = {};
#pragma unroll 2
    for (int chunk = lane; chunk < p.row_bytes / 16; chunk += WARP) {
        uint4 w[R], x[T];
#pragma unroll
        for (int r = 0; r < R; r++) {
            w[r] = *(const uint4*)(p.codes + (size_t)min(first + r, p.rows - 1) * p.row_bytes + 16 * chunk);
        }
#pragma unroll
        for (int t = 0; t < T; t++) {
            x[t] = *(const uint4*)(p.x + (size_t)min(t, p.tokens - 1) * p.row_bytes + 16 * chunk);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int t = 0; t < T; t++) sums[r][t] = dot(w[r], x[t], sums[r][t]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int t = 0; t < T; t++) {
            const int sum = warp_sum(sums[r][t]);
            if (lane == r * T + t && t < p.tokens && first + r < p.rows) p.write(t, first + r, sum);
        }
    }
}

#define GEMV(T, R) \
    KERNEL(gemv_i8i8_##T##x##R, (PRODUCT)) { gemv<T, R>(THE_PRODUCT); }
GEMV(1, 1) GEMV(1, 4) GEMV(2, 4) GEMV(4, 2) GEMV(8, 2)

// Many tokens: tiles of 64 tokens and 64 rows, 64 columns at a time through shared memory; a thread has four tokens and four
// rows, each 16 apart.
KERNEL(gemm_i8i8, (PRODUCT)) {
    constexpr int TILE = 64, WORDS = 16, SIDE = 16;
    // One word more than a row has, so that 16 threads that read a row each meet in no bank.
    __shared__ int a[TILE][WORDS + 1], b[TILE][WORDS + 1];
    const int token = blockIdx.x * TILE, row = blockIdx.y * TILE, tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    int sums[4][4] = {};
    for (int start = 0; start < row_bytes; start += 4 * WORDS) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * WORDS; i += blockDim.x) {
            const int line = i / WORDS, word = i % WORDS, at = start + 4 * word;
            const bool inside = at < row_bytes;
            a[line][word] =
                inside && token + line < tokens ? *(const int*)(x + (size_t)(token + line) * row_bytes + at) : 0;
            b[line][word] =
                inside && row + line < rows ? *(const int*)(codes + (size_t)(row + line) * row_bytes + at) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sums[i][j] = __dp4a(a[ty + SIDE * i][word], b[tx + SIDE * j][word], sums[i][j]);
                }
            }
        }
    }
    const Product p = THE_PRODUCT;
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            const int t = token + ty + SIDE * i, r = row + tx + SIDE * j;
            if (t < tokens && r < rows) p.write(t, r, sums[i][j]);
        }
    }
}
