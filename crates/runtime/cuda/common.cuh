// What all kernels share: how a kernel is declared, warps, rounding, the exponential.
#pragma once

#ifdef EMULATED
#include "emulator.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// Under emulation kernels are also entered into a table.
#define KERNEL(NAME, PARAMETERS) extern "C" __global__ void NAME PARAMETERS
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(16) float NAME[]

// sums [16, 8] += a [16, 32] * b [8, 32]^T, all in a warp's registers. Lane 4 g + t has of `a` rows g and g + 8 (words 0 and 1)
// at columns 4 t to 4 t + 3, and the same 16 columns later (words 2 and 3); of `b` row g at these columns; of `sums`
// rows g (0 and 1) and g + 8 at columns 2 t and 2 t + 1. (PTX: mma.m16n8k32.)
__device__ inline void multiply_add(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xFFFFFFFFu;
constexpr float INFINITE = __builtin_huge_valf();

// Elementwise kernels: a block takes 1024 columns, each thread four of them 256 apart.
constexpr int COLUMNS = 1024;

// The sum of all lanes' values, in every lane: lane i with i ^ 16, then i ^ 8, and so on.
__device__ inline float warp_sum(float v) {
    for (int step = WARP / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

__device__ inline int warp_sum(int v) {
    for (int step = WARP / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

__device__ inline unsigned warp_max(unsigned v) {
    for (int step = WARP / 2; step > 0; step /= 2) {
        unsigned other = __shfl_xor_sync(ALL_LANES, v, step);
        v = other > v ? other : v;
    }
    return v;
}

// n / by, for the powers of two that groups and blocks mostly are without the twenty instructions of a division.
__device__ inline unsigned divided(unsigned n, unsigned by) {
    return (by & (by - 1)) == 0 ? n >> (31 - __clz((int)by)) : n / by;
}

// The bits of the magnitude: they order as magnitudes do, and NaN comes last.
__device__ inline unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// e^x by Cephes' polynomial, operation by operation as `runtime::exp`.
__device__ inline float exponential(float x) {
    const float MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number.
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504088896341f + MAGIC;
    float n = shifted - MAGIC;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    float y = p * (r * r) + r + 1.0f;
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
}

// The code of x: round(x / scale) within 127, ties to even; 0 under scale 0. As the CPU, it keeps the low byte of
// x / scale + 1.5 * 2^23. Written so that NaN passes the bounds.
__device__ inline signed char code_8(float x, float scale) {
    if (scale == 0.0f) return 0;
    float v = x / scale;
    v = v < -127.0f ? -127.0f : v;
    v = v > 127.0f ? 127.0f : v;
    return (signed char)__float_as_uint(v + 12582912.0f);
}

// The largest of a block's values in every thread. `room` has 32 places, used by this alone, once in a kernel.
__device__ inline unsigned block_max(unsigned v, unsigned* room) {
    v = warp_max(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    v = threadIdx.x % WARP < blockDim.x / WARP ? room[threadIdx.x % WARP] : 0;
    return warp_max(v);
}
