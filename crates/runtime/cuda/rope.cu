// Norms (where there are any) and turns the heads of q and k. See README.md.
#include "common.cuh"

KERNEL(turn_heads, (float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm, int heads,
                    int kv_heads, int head_dim, float eps)) {
    const int head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (head >= heads + kv_heads) return;
    const size_t token = blockIdx.x;
    const int half = head_dim / 2;
    float* x = qkv + (token * (heads + 2 * kv_heads) + head) * head_dim;
    const float* norm = head < heads ? q_norm : k_norm;
    float factor = 1.0f;
    if (norm) {
        float sum = 0.0f;
        for (int c = lane; c < head_dim; c += WARP) sum = fmaf(x[c], x[c], sum);
        factor = 1.0f / sqrtf(warp_sum(sum) / (float)head_dim + eps);
    }
    for (int i = lane; i < half; i += WARP) {
        float a = x[i], b = x[half + i], c = cos[token * half + i], s = sin[token * half + i];
        if (norm) {
            a = a * factor * norm[i];
            b = b * factor * norm[half + i];
        }
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}
