// Causal attention over the paged cache, blockwise with an online softmax. See README.md.
//
// A block of threads takes up to ROWS query rows of one sequence and one key head, and a stretch of keys, 32 at a time:
// keys, then values go through one buffer of shared memory. The 16 threads of half a warp have ROWS / 8 query rows, and of
// each two keys, then some columns.
#include "kv.cuh"

constexpr int KEYS = 32, THREADS = 128, MOST = 256, SIDE = 16;
// Between rows in shared memory, beyond their length: 16 threads that read a row each meet in no bank.
constexpr int GAP = 4;

struct Attention {
    const float* qkv;
    void* store;
    float *out, *sums, *stats;
    const int *tiles, *table;
    int tokens, heads, kv_heads, head_dim, block, split_keys;
};

// Where query row `f` of a tile stands.
struct Query {
    int token, head;
    __device__ Query(const int* tile, int row, int group, int kv_head)
        : token(tile[0] + (tile[2] + row) / group), head(kv_head * group + (tile[2] + row) % group) {}
};

// Keys (0) or values (1) start..start + KEYS as floats; zeros from `end` on. 16 threads take one at a time.
template <class K>
__device__ void fetch(const Attention& a, const int* table, int which, int start, int end, float* room) {
#pragma unroll
    for (int i = 0; i < KEYS; i += THREADS / SIDE) {
        const int key = i + threadIdx.x / SIDE, position = start + key;
        const bool inside = position < end;
        const int index = divided(position, a.block), token = position - index * a.block;
        const Plane<K> plane(a.store, inside ? table[index] : 0, a.kv_heads, blockIdx.y, a.block, a.head_dim);
        const float scale = K::SCALE && inside ? __half2float(*plane.scale(which, token)) : 1.0f;
        for (int c = 4 * (threadIdx.x % SIDE); c < a.head_dim; c += 4 * SIDE) {
            float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
            if (inside) v = K::four(plane.row(which, token) + c);
            if (K::SCALE) v = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
            *(float4*)(room + key * (a.head_dim + GAP) + c) = v;
        }
    }
}

__device__ inline float half_warp_sum(float v) {
    for (int step = SIDE / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

__device__ inline float half_warp_max(float v) {
    for (int step = SIDE / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

template <class K, int ROWS>
__device__ void attend(const Attention& a) {
    constexpr int MINE = ROWS / 8, WIDE = ROWS == 8 ? MOST / 64 : 3;
    DYNAMIC_SHARED(shared);
    const int d = a.head_dim, stride = d + GAP, group = a.heads / a.kv_heads;
    float *q = shared, *room = q + ROWS * stride, *weights = room + KEYS * stride;
    const int* tile = a.tiles + 5 * blockIdx.x;
    const int count = tile[3], *table = a.table + tile[4];
    const int side = threadIdx.x % SIDE, first = threadIdx.x / SIDE * MINE;
    const size_t row_stride = (size_t)(a.heads + 2 * a.kv_heads) * d;

    const float scale = 1.0f / sqrtf((float)d);
    for (int i = threadIdx.x; i < ROWS * d; i += THREADS) {
        const int row = i / d, c = i % d;
        float x = 0.0f;
        if (row < count) {
            const Query at(tile, row, group, blockIdx.y);
            x = a.qkv[at.token * row_stride + (size_t)at.head * d + c] * scale;
        }
        q[row * stride + c] = x;
    }
    // The last key that a row sees.
    int seen[MINE];
    float top[MINE], total[MINE], sums[MINE][WIDE][4] = {};
#pragma unroll
    for (int r = 0; r < MINE; r++) {
        seen[r] = tile[1] + (tile[2] + min(first + r, count - 1)) / group;
        top[r] = -INFINITE;
        total[r] = 0.0f;
    }
    const int begin = blockIdx.z * a.split_keys;
    const int end = min(begin + a.split_keys, tile[1] + (tile[2] + count - 1) / group + 1);
    for (int start = begin; start < end; start += KEYS) {
        __syncthreads();
        fetch<K>(a, table, 0, start, end, room);
        __syncthreads();
        float score[MINE][2] = {};
        for (int c = 0; c < d; c += 4) {
            float4 k[2];
#pragma unroll
            for (int j = 0; j < 2; j++) k[j] = *(const float4*)(room + (side + SIDE * j) * stride + c);
#pragma unroll
            for (int r = 0; r < MINE; r++) {
                const float4 x = *(const float4*)(q + (first + r) * stride + c);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    score[r][j] = fmaf(x.x, k[j].x, score[r][j]);
                    score[r][j] = fmaf(x.y, k[j].y, score[r][j]);
                    score[r][j] = fmaf(x.z, k[j].z, score[r][j]);
                    score[r][j] = fmaf(x.w, k[j].w, score[r][j]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < MINE; r++) {
            bool kept[2];
            float most = top[r];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                kept[j] = start + side + SIDE * j <= seen[r];
                if (kept[j]) most = fmaxf(most, score[r][j]);
            }
            most = half_warp_max(most);
            // Nothing is seen yet where it is infinite.
            const float shrink = top[r] == -INFINITE ? 0.0f : exponential(top[r] - most);
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float e = kept[j] ? exponential(score[r][j] - most) : 0.0f;
                weights[(first + r) * (KEYS + GAP) + side + SIDE * j] = e;
                part += e;
            }
            total[r] = total[r] * shrink + half_warp_sum(part);
            top[r] = most;
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
#pragma unroll
                for (int k = 0; k < 4; k++) sums[r][j][k] *= shrink;
            }
        }
        __syncthreads();
        fetch<K>(a, table, 1, start, end, room);
        __syncthreads();
        for (int key = 0; key < min(KEYS, end - start); key++) {
            float p[MINE];
#pragma unroll
            for (int r = 0; r < MINE; r++) p[r] = weights[(first + r) * (KEYS + GAP) + key];
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const int c = 4 * side + 64 * j;
                if (c < d) {
                    const float4 v = *(const float4*)(room + key * stride + c);
#pragma unroll
                    for (int r = 0; r < MINE; r++) {
                        sums[r][j][0] = fmaf(p[r], v.x, sums[r][j][0]);
                        sums[r][j][1] = fmaf(p[r], v.y, sums[r][j][1]);
                        sums[r][j][2] = fmaf(p[r], v.z, sums[r][j][2]);
                        sums[r][j][3] = fmaf(p[r], v.w, sums[r][j][3]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < MINE; r++) {
        if (first + r >= count) continue;
        const Query at(tile, first + r, group, blockIdx.y);
        const size_t place = (size_t)at.token * a.heads + at.head;
        const size_t part = (size_t)blockIdx.z * a.tokens * a.heads + place;
        float* out = gridDim.z == 1 ? a.out + place * d : a.sums + part * d;
        const float divisor = gridDim.z == 1 ? total[r] : 1.0f;
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            const int c = 4 * side + 64 * j;
            if (c >= d) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) out[c + k] = sums[r][j][k] / divisor;
        }
        if (gridDim.z > 1 && side == 0) {
            a.stats[2 * part] = top[r];
            a.stats[2 * part + 1] = total[r];
        }
    }
}

#define ATTEND_WITH(NAME, KIND, ROWS)                                                                                \
    KERNEL(attend_##NAME##_##ROWS, (const float* qkv, void* store, float* out, float* sums, float* stats,            \
                                    const int* tiles, const int* table, int tokens, int heads, int kv_heads,         \
                                    int head_dim, int block, int split_keys)) {                                      \
        attend<KIND, ROWS>({qkv, store, out, sums, stats, tiles, table, tokens, heads, kv_heads, head_dim, block,     \
                            split_keys});                                                                            \
    }
#define ATTEND(NAME, KIND) ATTEND_WITH(NAME, KIND, 8) ATTEND_WITH(NAME, KIND, 32)
EACH_KIND(ATTEND)

// The parts of one token and head, in the order of their keys.
KERNEL(combine_splits, (const float* sums, const float* stats, float* out, int tokens, int heads, int head_dim,
                        int splits)) {
    const size_t place = (size_t)blockIdx.x * heads + blockIdx.y, step = (size_t)tokens * heads;
    float top = -INFINITE, total = 0.0f;
    // A part that saw no key adds nothing: its total and its sums are 0.
    for (int s = 0; s < splits; s++) top = fmaxf(top, stats[2 * (s * step + place)]);
    for (int s = 0; s < splits; s++) {
        const float* stat = stats + 2 * (s * step + place);
        total = fmaf(stat[1], exponential(stat[0] - top), total);
    }
    for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
        float sum = 0.0f;
        for (int s = 0; s < splits; s++) {
            const float* stat = stats + 2 * (s * step + place);
            sum = fmaf(sums[(s * step + place) * head_dim + c], exponential(stat[0] - top), sum);
        }
        out[place * head_dim + c] = sum / total;
    }
}
