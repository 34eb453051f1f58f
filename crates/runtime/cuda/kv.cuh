// How keys and values lie in a plane of the cache (README.md), for each kind of element.
#pragma once
#include "common.cuh"

// Elements that a thread loads at a time.
struct KvF32 {
    using Element = float;
    static constexpr int SCALE = 0;
    static __device__ float4 four(const float* p) { return *(const float4*)p; }
};

struct KvF16 {
    using Element = __half;
    static constexpr int SCALE = 0;
    static __device__ float4 four(const __half* p) {
        uint2 v = *(const uint2*)p;
        return {__half2float(__ushort_as_half(v.x & 0xFFFF)), __half2float(__ushort_as_half(v.x >> 16)),
                __half2float(__ushort_as_half(v.y & 0xFFFF)), __half2float(__ushort_as_half(v.y >> 16))};
    }
};

// Codes; a scale takes two of them.
struct KvI8 {
    using Element = signed char;
    static constexpr int SCALE = 2;
    static __device__ float4 four(const signed char* p) {
        int v = *(const int*)p;
        return {(float)(signed char)v, (float)(signed char)(v >> 8), (float)(signed char)(v >> 16),
                (float)(signed char)(v >> 24)};
    }
};

// One head of a block of tokens.
template <class K>
struct Plane {
    typename K::Element* at;
    int block, head_dim;

    __device__ Plane(void* store, size_t index, int kv_heads, int head, int block, int head_dim)
        : at((typename K::Element*)store + (index * kv_heads + head) * (2 * (size_t)(head_dim + K::SCALE) * block)),
          block(block),
          head_dim(head_dim) {}

    // The key (0) or value (1) of a token.
    __device__ typename K::Element* row(int which, int token) const {
        return at + ((size_t)which * block + token) * head_dim;
    }

    __device__ __half* scale(int which, int token) const {
        return (__half*)(at + 2 * (size_t)block * head_dim) + which * block + token;
    }
};

#define EACH_KIND(DO) DO(f32, KvF32) DO(f16, KvF16) DO(i8, KvI8)
