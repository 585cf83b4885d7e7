// Sorting of lines by keys that are all distinct: an element's key with its position below it. Tiles in shared memory
// by a bitonic network, then runs merged by rank. Users: argsort, and scatter-add, which adds in order of position.

//: Short
// A key of 32 bits and a position in one word.
struct Short {
    u64 word;
    static __device__ __forceinline__ Short of(u64 key, u64 position) { return Short{key << 32 | position}; }
    static __device__ __forceinline__ Short last() { return Short{~0ull}; }
    __device__ __forceinline__ bool before(const Short& o) const { return word < o.word; }
    __device__ __forceinline__ u64 key() const { return word >> 32; }
    __device__ __forceinline__ u64 position() const { return word & 0xffffffffull; }
};

//: Long
struct Long {
    u64 high, low;
    static __device__ __forceinline__ Long of(u64 key, u64 position) { return Long{key, position}; }
    static __device__ __forceinline__ Long last() { return Long{~0ull, ~0ull}; }
    __device__ __forceinline__ bool before(const Long& o) const {
        return high < o.high || (high == o.high && low < o.low);
    }
    __device__ __forceinline__ u64 key() const { return high; }
    __device__ __forceinline__ u64 position() const { return low; }
};

//: order_f32
// Integers in the order of the elements: zeros alike, NaN above infinity.
__device__ __forceinline__ u64 order_f32(float a) {
    const u32 bits = a == 0.0f ? 0u : __float_as_uint(a);
    return (u64)(a != a ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u);
}

//: order_f64
__device__ __forceinline__ u64 order_f64(double a) {
    const u64 bits = a == 0.0 ? 0ull : (u64)__double_as_longlong(a);
    return a != a ? ~0ull : bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

//: order_i64
__device__ __forceinline__ u64 order_i64(i64 a) {
    return (u64)a ^ 0x8000000000000000ull;
}

//: order_i32
__device__ __forceinline__ u64 order_i32(int a) {
    return (u64)((u32)a ^ 0x80000000u);
}

//: sort_tile
// Sorts each LINE of TILE keys in shared memory; all of the block's THREADS take part.
template <class K, int TILE, int LINE, int THREADS>
__device__ __forceinline__ void sort_tile(K* tile) {
    for (int size = 2; size <= LINE; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int p = threadIdx.x; p < TILE / 2; p += THREADS) {
                const int a = 2 * p - (p & (stride - 1)), b = a + stride;
                const bool up = (a & (LINE - 1) & size) == 0;
                const K x = tile[a], y = tile[b];
                if (y.before(x) == up) {
                    tile[a] = y;
                    tile[b] = x;
                }
            }
        }
    }
    __syncthreads();
}

//: merged_at
// Where element p of a line of len comes when its run of `run` sorted keys is merged with the neighbouring one.
template <class K>
__device__ __forceinline__ u64 merged_at(const K* line, u64 p, u64 run, u64 len) {
    const K x = line[p];
    const u64 own = p / run, other = (own ^ 1) * run;
    u64 low = 0, high = other >= len ? 0 : len - other < run ? len - other : run;
    while (low < high) {
        const u64 middle = (low + high) / 2;
        if (line[other + middle].before(x)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (own & ~1ull) * run + (p - own * run) + low;
}

//: first_of
// The first of len sorted keys that is at least `key`.
template <class K>
__device__ __forceinline__ u64 first_of(const K* sorted, u64 len, u64 key) {
    u64 low = 0, high = len;
    while (low < high) {
        const u64 middle = (low + high) / 2;
        if (sorted[middle].key() < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
