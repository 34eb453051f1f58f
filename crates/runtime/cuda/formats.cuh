// Packed weights, 16 bytes of a row at a time: a chunk. A format says how many columns a chunk has, how the chunk is
// loaded, what four of its columns are, and where four columns lie. README.md has the layouts.
#pragma once
#include "common.cuh"

struct Weights {
    const unsigned char* codes;
    const void* scales;
    const short* zeros;
    const float* levels;
    int row_bytes, group, half_scales, groups;

    __device__ Weights(const unsigned char* codes, const void* scales, const short* zeros, const float* levels,
                       int row_bytes, int group, int half_scales, int cols)
        : codes(codes), scales(scales), zeros(zeros), levels(levels), row_bytes(row_bytes), group(group),
          half_scales(half_scales), groups(group ? (cols + group - 1) / group : 1) {}

    // Which scale of a row a column has.
    __device__ int group_of(int column) const { return group ? divided(column, group) : 0; }
};

#define WEIGHTS                                                                                              \
    const unsigned char *codes, const void *scales, const short *zeros, const float *levels, int row_bytes, \
        int group, int half_scales
#define THE_WEIGHTS Weights(codes, scales, zeros, levels, row_bytes, group, half_scales, cols)

// 2^23 + b in bits is this with the byte b in its lowest place.
constexpr unsigned BYTE_IN_FLOAT = 0x4B000000u;

// Byte `i` of `bits` less `offset` - 2^23.
__device__ inline float byte_less(unsigned bits, int i, float offset) {
    return __uint_as_float(__byte_perm(bits, BYTE_IN_FLOAT, 0x7440 + i)) - offset;
}

__device__ inline unsigned word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ inline uint4 chunk_bits(const Weights& w, int row, int chunk) {
    return *(const uint4*)(w.codes + (size_t)row * w.row_bytes + 16 * (size_t)chunk);
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

// What is loaded of a chunk is kept as it is until it is used, so that loads stay under way meanwhile: `load` never looks
// at what it loads, `ready` does.

// Codes that share a scale, as loaded.
struct Stored {
    uint4 bits;
    unsigned scale;
    int zero;
};

// The same, to be used. `offset` is 2^23 and what the stored code has more than the true one.
struct Coded {
    uint4 bits;
    float scale, offset;
};

__device__ inline Stored stored(const Weights& w, int row, int chunk, int group) {
    const size_t i = (size_t)row * w.groups + group;
    const unsigned scale = w.half_scales ? ((const unsigned short*)w.scales)[i] : ((const unsigned*)w.scales)[i];
    return {chunk_bits(w, row, chunk), scale, w.zeros ? w.zeros[i] : 0};
}

__device__ inline Coded coded(const Weights& w, const Stored& s, float offset) {
    const float scale = w.half_scales ? __half2float(__ushort_as_half(s.scale)) : __uint_as_float(s.scale);
    return {s.bits, scale, offset + (float)s.zero};
}

struct I8 : Straight<16> {
    using Raw = Stored;
    using Chunk = Coded;
    static __device__ Raw load(const Weights& w, int row, int chunk, int group) { return stored(w, row, chunk, group); }
    static __device__ Chunk ready(const Weights& w, const Raw& raw, int) { return coded(w, raw, 8388608.0f + 128.0f); }
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
    using Raw = Stored;
    using Chunk = Coded;
    static __device__ Raw load(const Weights& w, int row, int chunk, int group) { return stored(w, row, chunk, group); }
    static __device__ Chunk ready(const Weights& w, const Raw& raw, int) { return coded(w, raw, 8388608.0f + 8.0f); }
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        Nibbles n(word(c.bits, i / 2));
        for (int k = 0; k < 4; k++) out[k] = byte_less(k % 2 ? n.high : n.low, i % 2 * 2 + k / 2, c.offset);
    }
};

struct Lut4 : Straight<32> {
    using Raw = Stored;
    using Chunk = Coded;
    static __device__ Raw load(const Weights& w, int row, int chunk, int group) { return stored(w, row, chunk, group); }
    static __device__ Chunk ready(const Weights& w, const Raw& raw, int) { return coded(w, raw, 0.0f); }
    static __device__ void four(const Chunk& c, int i, const float* levels, float* out) {
        unsigned bits = word(c.bits, i / 2) >> i % 2 * 16;
        for (int k = 0; k < 4; k++) out[k] = levels[bits >> 4 * k & 15];
    }
};

// Blocks of 256 columns: d and min in f16, 8 six-bit scales and minimums in 12 bytes, then 128 bytes; 32 of these hold
// 64 columns, first all low nibbles, then all high ones. So a chunk has 16 columns, and 16 columns 32 later.
struct Q4K {
    static constexpr int WIDTH = 32;
    struct Raw {
        uint4 bits, head;
    };
    struct Chunk {
        uint4 bits;
        float factor[2], least[2], scale;
    };
    static __device__ Place place(int fours) {
        int i = fours % 16;
        return {fours / 16 * 2 + i % 8 / 4, i % 4 + i / 8 * 4};
    }
    static __device__ int chunks(const Weights& w) { return w.row_bytes / 144 * 8; }
    static __device__ Raw load(const Weights& w, int row, int chunk, int) {
        const unsigned char* block = w.codes + (size_t)row * w.row_bytes + (size_t)(chunk / 8) * 144;
        return {*(const uint4*)(block + 16 + 16 * (chunk % 8)), *(const uint4*)block};
    }
    static __device__ Chunk ready(const Weights&, const Raw& raw, int chunk) {
        const uint4 head = raw.head;
        const float d = __half2float(__ushort_as_half(head.x & 0xFFFF));
        const float min = __half2float(__ushort_as_half(head.x >> 16));
        Chunk c;
        c.bits = raw.bits;
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

// Formats without codes: a chunk is ready as it is loaded.
template <int COLUMNS_OF_A_CHUNK>
struct Floats : Straight<COLUMNS_OF_A_CHUNK> {
    using Raw = Plain;
    using Chunk = Plain;
    static __device__ Raw load(const Weights& w, int row, int chunk, int) { return {chunk_bits(w, row, chunk)}; }
    static __device__ Chunk ready(const Weights&, const Raw& raw, int) { return raw; }
};

struct F16 : Floats<8> {
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        for (int k = 0; k < 4; k++) {
            out[k] = __half2float(__ushort_as_half(word(c.bits, 2 * i + k / 2) >> k % 2 * 16 & 0xFFFF));
        }
    }
};

struct BF16 : Floats<8> {
    static __device__ void four(const Chunk& c, int i, const float*, float* out) {
        for (int k = 0; k < 4; k++) {
            unsigned pair = word(c.bits, 2 * i + k / 2);
            out[k] = __uint_as_float(k % 2 ? pair & 0xFFFF0000u : pair << 16);
        }
    }
};

struct F32 : Floats<4> {
    static __device__ void four(const Chunk& c, int, const float*, float* out) {
        for (int k = 0; k < 4; k++) out[k] = __uint_as_float(word(c.bits, k));
    }
};

#define EACH_FORMAT(DO) DO(i8, I8) DO(u4, U4) DO(lut4, Lut4) DO(q4k, Q4K) DO(f16, F16) DO(bf16, BF16) DO(f32, F32)
