// Packed weights, 16 bytes of a row at a time: a chunk. A format says how many columns a chunk has, how the chunk is
// loaded, what four of its columns are, and where four columns lie. README.md has the layouts.
#pragma once
#include "common.cuh"

struct Weights {
    const unsigned char* codes;
    const void* scales;
    const short* zeros;
    const float* levels;
    int row_bytes, group, half_scales;
};

#define WEIGHTS                                                                                              \
    const unsigned char *codes, const void *scales, const short *zeros, const float *levels, int row_bytes, \
        int group, int half_scales
#define THE_WEIGHTS \
    Weights { codes, scales, zeros, levels, row_bytes, group, half_scales }

// 2^23 + b in bits is this with the byte b in its lowest place.
constexpr unsigned BYTE_IN_FLOAT = 0x4B000000u;

// Byte `i` of `bits` less `offset` - 2^23.
__device__ inline float byte_less(unsigned bits, int i, float offset) {
    return __uint_as_float(__byte_perm(bits, BYTE_IN_FLOAT, 0x7440 + i)) - offset;
}

__device__ inline unsigned word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ inline float scale_at(const Weights& w, size_t i) {
    return w.half_scales ? __half2float(((const __half*)w.scales)[i]) : ((const float*)w.scales)[i];
}

__device__ inline uint4 chunk_bits(const Weights& w, int row, int chunk) {
    return *(const uint4*)(w.codes + (size_t)row * w.row_bytes + 16 * (size_t)chunk);
}

// Which of all scales a chunk of `width` columns has.
__device__ inline size_t group_of(const Weights& w, int row, int chunk, int width, int cols) {
    if (w.group == 0) return row;
    return (size_t)row * divided(cols + w.group - 1, w.group) + divided(chunk * width, w.group);
}

// Four columns: the chunk and the place within it, counted in fours.
struct Place {
    int chunk, four;
};

// Formats whose chunks follow each other along the columns.
template <int COLUMNS_OF_A_CHUNK>
struct Straight {
    static constexpr int WIDTH = COLUMNS_OF_A_CHUNK;
    static __device__ Place place(int fours) { return {fours / (WIDTH / 4), fours % (WIDTH / 4)}; }
    static __device__ int chunks(const Weights& w) { return w.row_bytes / 16; }
};

// Codes that share a scale. `offset` is 2^23 and what the stored code has more than the true one.
struct Coded {
    uint4 bits;
    float scale, offset;
};

template <int WIDTH>
__device__ inline Coded coded(const Weights& w, int row, int chunk, int cols, float offset) {
    size_t i = group_of(w, row, chunk, WIDTH, cols);
    float zero = w.zeros ? (float)w.zeros[i] : 0.0f;
    return {chunk_bits(w, row, chunk), scale_at(w, i), offset + zero};
}

struct I8 : Straight<16> {
    using Chunk = Coded;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int cols) {
        return coded<WIDTH>(w, row, chunk, cols, 8388608.0f + 128.0f);
    }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        unsigned bits = word(c.bits, i) ^ 0x80808080u;
        for (int k = 0; k < 4; k++) out[k] = byte_less(bits, k, c.offset);
    }
};

// The low nibbles of a word's bytes, and the high ones.
struct Nibbles {
    unsigned low, high;
    __device__ explicit Nibbles(unsigned bits) : low(bits & 0x0F0F0F0Fu), high(bits >> 4 & 0x0F0F0F0Fu) {}
};

struct U4 : Straight<32> {
    using Chunk = Coded;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int cols) {
        return coded<WIDTH>(w, row, chunk, cols, 8388608.0f + 8.0f);
    }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        Nibbles n(word(c.bits, i / 2));
        for (int k = 0; k < 4; k++) out[k] = byte_less(k % 2 ? n.high : n.low, i % 2 * 2 + k / 2, c.offset);
    }
};

struct Lut4 : Straight<32> {
    using Chunk = Coded;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int cols) {
        return coded<WIDTH>(w, row, chunk, cols, 0.0f);
    }
    static __device__ void four(const Chunk& c, int i, const float* levels, float* out) {
        unsigned bits = word(c.bits, i / 2) >> i % 2 * 16;
        for (int k = 0; k < 4; k++) out[k] = levels[bits >> 4 * k & 15];
    }
};

// Blocks of 256 columns: d and min in f16, 8 six-bit scales and minimums in 12 bytes, then 128 bytes; 32 of these hold
// 64 columns, first all low nibbles, then all high ones. So a chunk has 16 columns, and 16 columns 32 later.
struct Q4K {
    static constexpr int WIDTH = 32;
    struct Chunk {
        uint4 bits;
        float factor[2], least[2], scale;
    };
    static __device__ Place place(int fours) {
        int i = fours % 16;
        return {fours / 16 * 2 + i % 8 / 4, i % 4 + i / 8 * 4};
    }
    static __device__ int chunks(const Weights& w) { return w.row_bytes / 144 * 8; }
    static __device__ Chunk load(const Weights& w, int row, int chunk, int) {
        const unsigned char* block = w.codes + (size_t)row * w.row_bytes + (size_t)(chunk / 8) * 144;
        uint4 head = *(const uint4*)block;
        float d = __half2float(__ushort_as_half(head.x & 0xFFFF));
        float min = __half2float(__ushort_as_half(head.x >> 16));
        Chunk c;
        c.bits = *(const uint4*)(block + 16 + 16 * (chunk % 8));
        c.scale = 1.0f;
        for (int i = 0; i < 2; i++) {
            int group = chunk % 8 / 2 * 2 + i, at = group % 4 * 8;
            unsigned a = head.y >> at, b = head.z >> at, rest = head.w >> at;
            unsigned scale = group < 4 ? a & 63 : (rest & 15) | (a >> 2 & 48);
            unsigned least = group < 4 ? b & 63 : (rest >> 4 & 15) | (b >> 2 & 48);
            c.factor[i] = d * (float)scale;
            c.least[i] = min * (float)least;
        }
        return c;
    }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        int high = i / 4;
        Nibbles n(word(c.bits, i % 4));
        for (int k = 0; k < 4; k++) {
            // The product is exact, so one rounding is what two would give.
            out[k] = fmaf(c.factor[high], byte_less(high ? n.high : n.low, k, 8388608.0f), -c.least[high]);
        }
    }
};

struct Plain {
    uint4 bits;
    static constexpr float scale = 1.0f;
};

struct F16 : Straight<8> {
    using Chunk = Plain;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int) { return {chunk_bits(w, row, chunk)}; }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        for (int k = 0; k < 4; k++) {
            out[k] = __half2float(__ushort_as_half(word(c.bits, 2 * i + k / 2) >> k % 2 * 16 & 0xFFFF));
        }
    }
};

struct BF16 : Straight<8> {
    using Chunk = Plain;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int) { return {chunk_bits(w, row, chunk)}; }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        for (int k = 0; k < 4; k++) {
            unsigned pair = word(c.bits, 2 * i + k / 2);
            out[k] = __uint_as_float(k % 2 ? pair & 0xFFFF0000u : pair << 16);
        }
    }
};

struct F32 : Straight<4> {
    using Chunk = Plain;
    static __device__ Chunk load(const Weights& w, int row, int chunk, int) { return {chunk_bits(w, row, chunk)}; }
    static __device__ void four(const Chunk& c, int, const float*, float* out) {
        for (int k = 0; k < 4; k++) out[k] = __uint_as_float(word(c.bits, k));
    }
};

#define EACH_FORMAT(DO) DO(i8, I8) DO(u4, U4) DO(lut4, Lut4) DO(q4k, Q4K) DO(f16, F16) DO(bf16, BF16) DO(f32, F32)
