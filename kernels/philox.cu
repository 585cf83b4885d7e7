// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as in
// src/kernel/math.rs: element i of a draw is the first word at counter (i, draw), its upper 24 bits times 2^-24.
//
// Header-free: NVRTC has no implicit headers, and a user needs the driver and NVRTC only.

typedef unsigned int u32;
typedef unsigned long long u64;

struct Words {
    u32 w[4];
};

__device__ __forceinline__ Words philox4x32_10(Words counter, u32 key0, u32 key1) {
    const u32 multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
    const u32 weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(multiplier0, counter.w[0]), low0 = multiplier0 * counter.w[0];
        const u32 high1 = __umulhi(multiplier1, counter.w[2]), low1 = multiplier1 * counter.w[2];
        counter = Words{{high1 ^ counter.w[1] ^ key0, low1, high0 ^ counter.w[3] ^ key1, low0}};
        key0 += weyl0;
        key1 += weyl1;
    }
    return counter;
}

// out[i] in [0, 1) for i in 0..n; seed and draw are words of the parameter block.
extern "C" __global__ void uniform_f32(float* __restrict__ out, u64 n, u64 seed, u64 draw) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const Words at = {{(u32)i, (u32)(i >> 32), (u32)draw, (u32)(draw >> 32)}};
        out[i] = (float)(philox4x32_10(at, (u32)seed, (u32)(seed >> 32)).w[0] >> 8) * 0x1p-24f;
    }
}
