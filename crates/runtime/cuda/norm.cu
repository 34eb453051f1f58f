// RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight. See README.md.
#include "common.cuh"

KERNEL(rms_norm, (const float* x, const float* weight, float* out, int cols, float eps)) {
    __shared__ float room[WARP];
    const float* row = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum = fmaf(row[c], row[c], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = sum;
    __syncthreads();
    // Every warp sums the warps' sums, so that every thread has the total.
    sum = warp_sum(threadIdx.x % WARP < blockDim.x / WARP ? room[threadIdx.x % WARP] : 0.0f);
    const float factor = 1.0f / sqrtf(sum / (float)cols + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        out[(size_t)blockIdx.x * cols + c] = row[c] * factor * weight[c];
    }
}
