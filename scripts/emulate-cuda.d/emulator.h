// Just enough of CUDA to run a kernel on the host, one block of threads after the other.
//
// The threads of a block are fibers of one thread of the machine: they run until they meet a barrier. Which goes first is
// changed by EMULATED_ORDER, so that what depends on it (a missing barrier) shows; a barrier that not all reach ends
// the program, as does any access outside a buffer where it is built with a sanitizer.
#pragma once
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

extern uint3 threadIdx, blockIdx, blockDim, gridDim;
extern float* emulated_shared;
#define DYNAMIC_SHARED(NAME) float* NAME = emulated_shared

void __syncthreads();
// What the lane `lane ^ step` of the warp gave.
uint32_t exchange(uint32_t mine, int step);

// As in common.cuh, whose layout of a warp's registers it follows.
void multiply_add(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

template <class T>
T __shfl_xor_sync(unsigned, T v, int step) {
    static_assert(sizeof(T) == 4, "values of 32 bits");
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = exchange(bits, step);
    memcpy(&v, &bits, 4);
    return v;
}

inline uint32_t __float_as_uint(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return out;
}

inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }

inline int __dp4a(int a, int b, int sum) {
    uint32_t all = (uint32_t)sum;
    for (int i = 0; i < 4; i++) all += (uint32_t)((int)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
    return (int)all;
}

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
inline __half __ushort_as_half(unsigned bits) { return {(uint16_t)bits}; }
inline float __half2float(__half h) {
    _Float16 v;
    memcpy(&v, &h.bits, 2);
    return (float)v;
}
inline __half __float2half_rn(float v) {
    const _Float16 h = (_Float16)v;
    __half out;
    memcpy(&out.bits, &h, 2);
    return out;
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    const uint32_t bits = __float_as_uint(v);
    if (v != v) return {0x7FFF};
    return {(uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

// One argument of a launch.
struct Argument {
    char kind;  // 'i' int, 'l' long, 'f' float, 'p' pointer
    int64_t integer;
    float real;
    void* pointer;
};

inline void take(const Argument& a, int& out) { out = a.kind == 'i' ? (int)a.integer : throw std::string("an int"); }
inline void take(const Argument& a, long& out) { out = a.kind == 'l' ? (long)a.integer : throw std::string("a long"); }
inline void take(const Argument& a, float& out) { out = a.kind == 'f' ? a.real : throw std::string("a float"); }
template <class T>
void take(const Argument& a, T*& out) {
    out = a.kind == 'p' ? (T*)a.pointer : throw std::string("a pointer");
}

using Kernel = std::function<void()>;

// The kernels by name: each makes of arguments what a thread runs.
struct Entry {
    std::string name;
    std::function<Kernel(const std::vector<Argument>&)> bind;
};
std::vector<Entry>& entries();

template <class... A>
struct Registered {
    Registered(const char* name, void (*kernel)(A...)) {
        entries().push_back({name, [kernel](const std::vector<Argument>& given) { return bound(kernel, given); }});
    }
    static Kernel bound(void (*kernel)(A...), const std::vector<Argument>& given) {
        if (given.size() != sizeof...(A)) throw std::to_string(sizeof...(A)) + " arguments";
        return filled(kernel, given, std::index_sequence_for<A...>());
    }
    template <size_t... I>
    static Kernel filled(void (*kernel)(A...), const std::vector<Argument>& given, std::index_sequence<I...>) {
        std::tuple<A...> values;
        (take(given[I], std::get<I>(values)), ...);
        return [kernel, values] { std::apply(kernel, values); };
    }
};

#define KERNEL(NAME, PARAMETERS)                      \
    static void NAME PARAMETERS;                      \
    static Registered registered_##NAME(#NAME, NAME); \
    static void NAME PARAMETERS
