// Rows of packed weights to floats. See README.md.
#include "formats.cuh"

__device__ inline void put(float* out, float v) { *out = v; }
__device__ inline void put(__half* out, float v) { *out = __float2half_rn(v); }
__device__ inline void put(__nv_bfloat16* out, float v) { *out = __float2bfloat16_rn(v); }

template <class Out>
struct alignas(4 * sizeof(Out)) Four {
    Out values[4];
};

template <class F, class Out>
__device__ void decode(Weights w, const unsigned* ids, Out* out, int first_row, int cols, int out_stride) {
    const int row = ids ? (int)ids[blockIdx.x] : first_row + (int)blockIdx.x;
    const int fours = blockIdx.y * blockDim.x + threadIdx.x, column = 4 * fours;
    if (column >= out_stride) return;
    float v[4] = {};
    if (column < cols) {
        Place p = F::place(fours);
        typename F::Chunk c = F::ready(w, F::load(w, row, p.chunk, w.group_of(p.chunk * F::WIDTH)), p.chunk);
        // The place within a chunk isn't known to the compiler here, so the chunk's words are chosen at run time.
        F::four(c, p.four, w.levels, v);
        for (int k = 0; k < 4; k++) v[k] = column + k < cols ? v[k] * c.scale : 0.0f;
    }
    Out* o = out + (size_t)blockIdx.x * out_stride + column;
    Four<Out> all;
    for (int k = 0; k < 4; k++) put(&all.values[k], v[k]);
    if (out_stride % 4 == 0) {
        *(Four<Out>*)o = all;
    } else {
        for (int k = 0; k < 4; k++) {
            if (column + k < out_stride) o[k] = all.values[k];
        }
    }
}

#define DECODE(NAME, FORMAT, OUT_NAME, OUT)                                                                       \
    KERNEL(decode_##NAME##_##OUT_NAME,                                                                           \
           (WEIGHTS, const unsigned* ids, OUT* out, int first_row, int cols, int out_stride)) {                  \
        decode<FORMAT, OUT>(THE_WEIGHTS, ids, out, first_row, cols, out_stride);                                  \
    }
#define OUTPUTS(NAME, FORMAT) \
    DECODE(NAME, FORMAT, f32, float) DECODE(NAME, FORMAT, f16, __half) DECODE(NAME, FORMAT, bf16, __nv_bfloat16)
EACH_FORMAT(OUTPUTS)
