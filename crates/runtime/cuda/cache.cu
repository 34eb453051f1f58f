// Writing keys and values into the cache. See README.md.
#include "kv.cuh"

// What a warp writes of one key or value.
__device__ inline void encode(const float* x, float* out, __half*, int n) {
    for (int c = threadIdx.x % WARP; c < n; c += WARP) out[c] = x[c];
}

__device__ inline void encode(const float* x, __half* out, __half*, int n) {
    for (int c = threadIdx.x % WARP; c < n; c += WARP) out[c] = __float2half_rn(x[c]);
}

// The scale is rounded to f16 before the codes are computed.
__device__ inline void encode(const float* x, signed char* out, __half* scale, int n) {
    unsigned top = 0;
    for (int c = threadIdx.x % WARP; c < n; c += WARP) top = max(top, magnitude(x[c]));
    const __half rounded = __float2half_rn(__uint_as_float(warp_max(top)) / 127.0f);
    if (threadIdx.x % WARP == 0) *scale = rounded;
    for (int c = threadIdx.x % WARP; c < n; c += WARP) out[c] = code_8(x[c], __half2float(rounded));
}

// The first warp writes keys, the second values.
template <class K>
__device__ void store_keys(const float* qkv, void* store, const int* slots, int heads, int kv_heads, int head_dim,
                           int block) {
    const int which = threadIdx.x / WARP, head = blockIdx.y, slot = slots[blockIdx.x], token = slot % block;
    const Plane<K> plane(store, slot / block, kv_heads, head, block, head_dim);
    const size_t from = (size_t)blockIdx.x * (heads + 2 * kv_heads) + heads + which * kv_heads + head;
    encode(qkv + from * head_dim, plane.row(which, token), plane.scale(which, token), head_dim);
}

#define STORE_KEYS(NAME, KIND)                                                                                     \
    KERNEL(store_keys_##NAME, (const float* qkv, void* store, const int* slots, int heads, int kv_heads, int head_dim, \
                               int block)) {                                                                      \
        store_keys<KIND>(qkv, store, slots, heads, kv_heads, head_dim, block);                                     \
    }
EACH_KIND(STORE_KEYS)

KERNEL(copy_block, (unsigned* store, long from, long to, long words)) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < words) store[to + i] = store[from + i];
}
