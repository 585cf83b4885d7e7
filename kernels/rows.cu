// Sums of contiguous rows in the order that src/kernel/order.rs fixes, so that the bits are those of every other
// backend: element i of a block of 4096 goes to lane i mod 128, a lane adds in index order from -0 (which changes
// nothing), lanes combine by halving, blocks pairwise from the left.
//
// One thread block of 128 threads a row: lane = thread. Header-free.

typedef unsigned long long u64;

static const int LANES = 128;
static const int BLOCK = 4096;
// Pairwise combination of up to 2^32 blocks needs one pending result a level.
static const int LEVELS = 32;

// The 128 lanes by halving; the result is in thread 0.
__device__ __forceinline__ float halve(float lane, float* shared) {
    shared[threadIdx.x] = lane;
    __syncthreads();
    if (threadIdx.x < 64) shared[threadIdx.x] += shared[threadIdx.x + 64];
    __syncthreads();
    float sum = -0.0f;
    if (threadIdx.x < 32) {
        sum = shared[threadIdx.x] + shared[threadIdx.x + 32];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    }
    __syncthreads();
    return sum;
}

// out[row] = sum of x[row * n .. row * n + n]; launch with gridDim.x = rows, blockDim.x = 128.
extern "C" __global__ void sum_rows_f32(const float* __restrict__ x, float* __restrict__ out, u64 n) {
    __shared__ float shared[LANES];
    const float* row = x + (u64)blockIdx.x * n;
    // pending[l] is the sum of 2^l blocks, where bit l of `blocks` is set.
    float pending[LEVELS];
    u64 blocks = 0;
    for (u64 begin = 0; begin < n; begin += BLOCK) {
        const u64 end = begin + BLOCK < n ? begin + BLOCK : n;
        float lane = -0.0f;
        for (u64 i = begin + threadIdx.x; i < end; i += LANES) lane += row[i];
        float sum = halve(lane, shared);
        int level = 0;
        for (; blocks >> level & 1; ++level) sum = pending[level] + sum;
        pending[level] = sum;
        ++blocks;
    }
    if (threadIdx.x == 0) {
        // What is left over pairs up from the right: the last block passes through until it meets a partner.
        float sum = 0.0f;
        bool any = false;
        for (int level = 0; level < LEVELS; ++level) {
            if (blocks >> level & 1) {
                sum = any ? pending[level] + sum : pending[level];
                any = true;
            }
        }
        out[blockIdx.x] = sum;
    }
}
