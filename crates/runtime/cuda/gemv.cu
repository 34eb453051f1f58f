// Few tokens times packed weights, straight from the packed form: out = x W^T. See README.md.
//
// A warp takes R rows, a lane every 32nd chunk of 16 bytes of each. Activations are staged in shared memory in the order
// in which lanes read them, so that neither loads of codes nor of activations waste a byte or meet in a bank.
#include "formats.cuh"

constexpr int STAGED = 8192;  // activations

// Columns [4 * first, 4 * last) of all tokens, as lanes read them: of each 32 chunks, the first four columns of each chunk,
// then the second four, and so on. `first` begins a tile.
template <class F, int T>
__device__ void stage(const float* x, int tokens, int cols, int first, int last, float4* staged) {
    constexpr int TILE = STAGED / T / 4, FOURS = F::WIDTH / 4;
#pragma unroll 1
    for (int t = 0; t < tokens; t++) {
        const float* row = x + (size_t)t * cols;
        auto put = [&](int i, float4 v) {
            const Place p = F::place(i - first);
            staged[t * TILE + (p.chunk / WARP * FOURS + p.four) * WARP + p.chunk % WARP] = v;
        };
        auto at = [&](int c) { return c < cols ? row[c] : 0.0f; };
        if (cols % 4 == 0) {
#pragma unroll 4
            for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
                put(i, 4 * i < cols ? *(const float4*)(row + 4 * i) : float4{0.0f, 0.0f, 0.0f, 0.0f});
            }
        } else {
#pragma unroll 1
            for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
                put(i, {at(4 * i), at(4 * i + 1), at(4 * i + 2), at(4 * i + 3)});
            }
        }
    }
}

template <class F, int T, int R>
__device__ void gemv(const float* x, Weights w, const float* bias, float* out, int tokens, int rows, int cols,
                     int out_stride, int accumulate) {
    constexpr int FOURS = F::WIDTH / 4, TILE = STAGED / T / F::WIDTH;
    __shared__ float4 staged[STAGED / 4];
    __shared__ float levels[16];
    if (w.levels && threadIdx.x < 16) levels[threadIdx.x] = w.levels[threadIdx.x];
    const int lane = threadIdx.x % WARP;
    const int first = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * R;
    const int chunks = F::chunks(w);
    int row[R];
#pragma unroll
    for (int r = 0; r < R; r++) row[r] = min(first + r, rows - 1);
    float sums[R][T] = {};
    for (int start = 0; start < chunks; start += TILE) {
        const int end = min(start + TILE, chunks);
        // Codes are asked for one step ahead, those of the first step before the activations.
        typename F::Raw next[R];
        auto ask = [&](int chunk) {
            const int group = w.group_of(chunk * F::WIDTH);
#pragma unroll
            for (int r = 0; r < R; r++) next[r] = F::load(w, row[r], chunk, group);
        };
        if (start + lane < end) ask(start + lane);
        __syncthreads();
        stage<F, T>(x, tokens, cols, start * FOURS, end * FOURS, staged);
        __syncthreads();
#pragma unroll 1
        for (int chunk = start + lane; chunk < end; chunk += WARP) {
            typename F::Chunk now[R];
#pragma unroll
            for (int r = 0; r < R; r++) now[r] = F::ready(w, next[r], chunk);
            if (chunk + WARP < end) ask(chunk + WARP);
            const float4* at = staged + (chunk - start) / WARP * FOURS * WARP + lane;
            float part[R][T] = {};
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                float4 v[T];
#pragma unroll
                for (int t = 0; t < T; t++) v[t] = at[t * (STAGED / T / 4) + i * WARP];
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float a[4];
                    F::four(now[r], i, levels, a);
#pragma unroll
                    for (int t = 0; t < T; t++) {
                        part[r][t] = fmaf(a[0], v[t].x, part[r][t]);
                        part[r][t] = fmaf(a[1], v[t].y, part[r][t]);
                        part[r][t] = fmaf(a[2], v[t].z, part[r][t]);
                        part[r][t] = fmaf(a[3], v[t].w, part[r][t]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int t = 0; t < T; t++) sums[r][t] = fmaf(part[r][t], now[r].scale, sums[r][t]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int t = 0; t < T; t++) {
            float sum = warp_sum(sums[r][t]);
            if (lane == r * T + t && t < tokens && first + r < rows) {
                float* o = out + (size_t)t * out_stride + first + r;
                if (accumulate) sum = *o + sum;
                if (bias) sum += bias[first + r];
                *o = sum;
            }
        }
    }
}

#define GEMV(NAME, FORMAT, T, R)                                                                              \
    KERNEL(gemv_##NAME##_##T##x##R, (const float* x, WEIGHTS, const float* bias, float* out, int tokens, int rows, \
                                     int cols, int out_stride, int accumulate)) {                            \
        gemv<FORMAT, T, R>(x, THE_WEIGHTS, bias, out, tokens, rows, cols, out_stride, accumulate);             \
    }
#define SIZES(NAME, FORMAT) \
    GEMV(NAME, FORMAT, 1, 1) GEMV(NAME, FORMAT, 1, 4) GEMV(NAME, FORMAT, 2, 4) GEMV(NAME, FORMAT, 4, 2) GEMV(NAME, FORMAT, 8, 2)
EACH_FORMAT(SIZES)
