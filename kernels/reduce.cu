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
