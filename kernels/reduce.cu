// Reductions in the order of src/kernel/order.rs. A way to combine is a struct C with C::type, C::identity() and
// C::both(a, b), which commutes up to the bits of NaN.

//: Pairwise
// Results of blocks as they come: bit l of `count` says that pending[l] holds those of 2^l blocks.
template <class C, int LEVELS>
struct Pairwise {
    typename C::type pending[LEVELS];
    u32 count;

    __device__ __forceinline__ Pairwise() : count(0) {}

    __device__ __forceinline__ void push(typename C::type v) {
#pragma unroll
        for (int l = 0; l < LEVELS; ++l) {
            if ((count >> l & 1u) == 0u) {
                pending[l] = v;
                break;
            }
            v = C::both(pending[l], v);
        }
        ++count;
    }

    // At least one was pushed. What is left over pairs up from the right.
    __device__ __forceinline__ typename C::type finish() {
        typename C::type v = C::identity();
        bool any = false;
#pragma unroll
        for (int l = 0; l < LEVELS; ++l) {
            if (count >> l & 1u) {
                v = any ? C::both(pending[l], v) : pending[l];
                any = true;
            }
        }
        return v;
    }
};

//: halve_few
// N lanes of one thread by halving; those that are not there pass the others through.
template <class C, int N>
__device__ __forceinline__ typename C::type halve_few(typename C::type (&lane)[N]) {
#pragma unroll
    for (int half = 64; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half && j + half < N; ++j) lane[j] = C::both(lane[j], lane[j + half]);
    }
    return lane[0];
}

//: halve_warp
// One lane each of 32 threads; the result is in all of them.
template <class C>
__device__ __forceinline__ typename C::type halve_warp(typename C::type v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v = C::both(v, (typename C::type)__shfl_xor_sync(0xffffffffu, v, distance));
    return v;
}

//: halve_block
// One lane each of 128 threads; the result is in all of them.
template <class C>
__device__ __forceinline__ typename C::type halve_block(typename C::type v) {
    __shared__ typename C::type lane[128];
    lane[threadIdx.x] = v;
    __syncthreads();
    const u32 t = threadIdx.x % 32u;
    v = C::both(C::both(lane[t], lane[t + 64u]), C::both(lane[t + 32u], lane[t + 96u]));
    __syncthreads();
    return halve_warp<C>(v);
}

//: halve_quads
// 128 lanes, 4t to 4t + 3 in thread t of a warp; the result is in all threads. First a thread keeps half of its lanes.
template <class C>
__device__ __forceinline__ typename C::type halve_quads(const typename C::type (&v)[4]) {
    typedef typename C::type T;
    const bool high = threadIdx.x & 16u, odd = threadIdx.x & 8u;
    const T a = C::both(high ? v[2] : v[0], (T)__shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16));
    const T b = C::both(high ? v[3] : v[1], (T)__shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16));
    T one = C::both(odd ? b : a, (T)__shfl_xor_sync(0xffffffffu, odd ? a : b, 8));
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) one = C::both(one, (T)__shfl_xor_sync(0xffffffffu, one, distance));
    one = C::both(one, (T)__shfl_xor_sync(0xffffffffu, one, 16));
    return C::both(one, (T)__shfl_xor_sync(0xffffffffu, one, 8));
}

//: pairwise_block
// n results of blocks by the 128 threads of a thread block, CHUNK (a power of two) each; the result is in all of them.
template <class C, int CHUNK, int LEVELS>
__device__ __forceinline__ typename C::type pairwise_block(const typename C::type* blocks, u64 n) {
    typedef typename C::type T;
    __shared__ T warps[4];
    const u64 begin = (u64)threadIdx.x * CHUNK;
    T v = C::identity();
    if (begin < n) {
        Pairwise<C, LEVELS> some;
        const u64 end = n - begin < CHUNK ? n : begin + CHUNK;
#pragma unroll 4
        for (u64 b = begin; b < end; ++b) some.push(blocks[b]);
        v = some.finish();
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) v = C::both(v, (T)__shfl_xor_sync(0xffffffffu, v, distance));
    if (threadIdx.x % 32u == 0u) warps[threadIdx.x / 32u] = v;
    __syncthreads();
    v = C::both(C::both(warps[0], warps[1]), C::both(warps[2], warps[3]));
    __syncthreads();
    return v;
}
