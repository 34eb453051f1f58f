// Casts, gathering of columns, biases, SwiGLU. See README.md.
#include "common.cuh"

// Columns of a block's token that a thread takes, below n.
#define EACH_COLUMN(c, n)                                                                              \
    for (int c = blockIdx.y * COLUMNS + threadIdx.x, last = min((int)(blockIdx.y + 1) * COLUMNS, n); c < last; \
         c += blockDim.x)

// NaN passes the bounds.
__device__ inline float within_f16(float v) {
    v = v > 65504.0f ? 65504.0f : v;
    return v < -65504.0f ? -65504.0f : v;
}

KERNEL(cast_f16, (const float* x, __half* out, int cols, int out_stride)) {
    EACH_COLUMN(c, out_stride) {
        float v = c < cols ? within_f16(x[(size_t)blockIdx.x * cols + c]) : 0.0f;
        out[(size_t)blockIdx.x * out_stride + c] = __float2half_rn(v);
    }
}

KERNEL(cast_bf16, (const float* x, __nv_bfloat16* out, int cols, int out_stride)) {
    EACH_COLUMN(c, out_stride) {
        float v = c < cols ? x[(size_t)blockIdx.x * cols + c] : 0.0f;
        out[(size_t)blockIdx.x * out_stride + c] = __float2bfloat16_rn(v);
    }
}

KERNEL(gather, (const float* x, const int* columns, float* out, int cols, int n)) {
    EACH_COLUMN(c, n) { out[(size_t)blockIdx.x * n + c] = x[(size_t)blockIdx.x * cols + columns[c]]; }
}

KERNEL(add_bias, (float* out, const float* bias, int rows, int out_stride)) {
    EACH_COLUMN(r, rows) { out[(size_t)blockIdx.x * out_stride + r] += bias[r]; }
}

KERNEL(swiglu, (const float* gate_up, float* out, int n)) {
    const float* gate = gate_up + (size_t)blockIdx.x * 2 * n;
    EACH_COLUMN(c, n) {
        float g = gate[c];
        out[(size_t)blockIdx.x * n + c] = g / (1.0f + exponential(-g)) * gate[n + c];
    }
}
