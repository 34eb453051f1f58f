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

// Many tokens, by tensor cores: tiles of 64 tokens and 128 rows, 64 columns at a time through shared memory; of eight warps
// each has 32 tokens and 32 rows. What comes next is asked for while this is multiplied.
KERNEL(gemm_i8i8, (PRODUCT)) {
    constexpr int TOKENS = 64, ROWS = 128, WORDS = 16, LOADS = (TOKENS + ROWS) / 64;
    // Four words more than a row has, so that the lanes of a fragment meet in no bank.
    __shared__ __align__(16) unsigned lines[TOKENS + ROWS][WORDS + 4];
    const Product p = THE_PRODUCT;
    const int token = blockIdx.x * TOKENS, row = blockIdx.y * ROWS;
    if (row >= rows) return;
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int first_token = warp % 2 * 32, first_row = warp / 2 * 32;
    // Each thread moves 16 bytes of every 64th line; tokens come first, then rows.
    const int line = threadIdx.x / 4, part = threadIdx.x % 4;
    uint4 next[LOADS];
    auto ask = [&](int start) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int l = i == 0 ? token + line : row + line + 64 * (i - 1);
            const bool inside = start + 16 * part < row_bytes && l < (i == 0 ? tokens : rows);
            const signed char* from = (i == 0 ? x : codes) + (size_t)l * row_bytes + start + 16 * part;
            next[i] = inside ? *(const uint4*)from : uint4{0, 0, 0, 0};
        }
    };
    int sums[2][4][4] = {};
    ask(0);
    for (int start = 0; start < row_bytes; start += 4 * WORDS) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LOADS; i++) *(uint4*)&lines[line + 64 * i][4 * part] = next[i];
        __syncthreads();
        if (start + 4 * WORDS < row_bytes) ask(start + 4 * WORDS);
#pragma unroll
        for (int k = 0; k < WORDS; k += 8) {
            unsigned a[2][4], b[4][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int i = 0; i < 4; i++) a[m][i] = lines[first_token + 16 * m + g + i % 2 * 8][k + t + i / 2 * 4];
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) b[n][i] = lines[TOKENS + first_row + 8 * n + g][k + t + i * 4];
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int n = 0; n < 4; n++) multiply_add(sums[m][n], a[m], b[n]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = token + first_token + 16 * m + g + i / 2 * 8, r = row + first_row + 8 * n + 2 * t + i % 2;
                if (at < tokens && r < rows) p.write(at, r, sums[m][n][i]);
            }
        }
    }
}
