// Functions that rendered kernels are made of: the instructions of src/kernel/instr.rs that take more than an expression,
// bit for bit as src/kernel/meaning.rs states them. Each piece begins with a line `//: name` and may use those before
// it; the renderer takes those that a text uses. Header-free: NVRTC has no implicit headers.

//: infinity
__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000u);
}

//: not_a_number
__device__ __forceinline__ float not_a_number() {
    return __uint_as_float(0x7fc00000u);
}

//: minimum
// IEEE 754-2019: NaN if either is NaN; -0 is below +0.
__device__ __forceinline__ float minimum(float a, float b) {
    const float less = a < b || a != a ? a : b;
    return a == b ? __uint_as_float(__float_as_uint(a) | __float_as_uint(b)) : less;
}

//: maximum
__device__ __forceinline__ float maximum(float a, float b) {
    const float more = a > b || a != a ? a : b;
    return a == b ? __uint_as_float(__float_as_uint(a) & __float_as_uint(b)) : more;
}

//: minimum_f64
__device__ __forceinline__ double minimum_f64(double a, double b) {
    const double less = a < b || a != a ? a : b;
    return a == b ? __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b)) : less;
}

//: maximum_f64
__device__ __forceinline__ double maximum_f64(double a, double b) {
    const double more = a > b || a != a ? a : b;
    return a == b ? __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b)) : more;
}

//: scale
// a * 2^floor(n) with one rounding. Where a and the result are normal, n is added to the exponent.
__device__ __forceinline__ float scale(float a, float n) {
    if (fabsf(n) < 300.0f) {
        const u32 bits = __float_as_uint(a);
        const int by = (int)floorf(n), field = (int)(bits >> 23 & 255u);
        if ((u32)(field - 1) < 254u && (u32)(field + by - 1) < 254u) return __uint_as_float(bits + ((u32)by << 23));
    }
    double factor;
    if (n != n) {
        factor = (double)n;
    } else if (fabsf(n) == infinity()) {
        factor = n > 0.0f ? (double)n : 0.0;
    } else {
        // Beyond 300 every result has overflowed or vanished.
        const float whole = floorf(n), low = whole < -300.0f ? -300.0f : whole, in_range = low > 300.0f ? 300.0f : low;
        factor = __longlong_as_double((i64)(1023 + (int)in_range) << 52);
    }
    return (float)((double)a * factor);
}

//: split
// |a| as mantissa * 2^exponent with the mantissa in 3/4..3/2.
__device__ __forceinline__ void split(float a, float* mantissa, float* exponent) {
    float magnitude = fabsf(a);
    int bias = 127;
    if (magnitude < 1.17549435e-38f) {
        magnitude *= 16777216.0f;
        bias += 24;
    }
    const u32 bits = __float_as_uint(magnitude), high = bits >> 22 & 1u;
    *mantissa = __uint_as_float((127u - high) << 23 | (bits & 0x7fffffu));
    *exponent = (float)((int)(bits >> 23) - bias + (int)high);
}

//: mantissa
__device__ __forceinline__ float mantissa(float a) {
    float m, e;
    split(a, &m, &e);
    if (a == 0.0f || a == infinity()) return 1.0f;
    return a != a || a < 0.0f ? not_a_number() : m;
}

//: exponent
__device__ __forceinline__ float exponent(float a) {
    float m, e;
    split(a, &m, &e);
    if (!(fabsf(a) < infinity())) return fabsf(a);
    return a == 0.0f ? -infinity() : e;
}

//: turns
// |a| / pi mod 2, in units of 2^-63 (Payne and Hanek); not inline: such angles are rare.
__device__ const u32 inv_pi_bits[9] = {0u,          0x517cc1b7u, 0x27220a94u, 0xfe13abe8u, 0xfa9a6ee0u,
                                       0x6db14accu, 0x9e21c820u, 0xff28b1d5u, 0u};
__device__ __noinline__ u64 turns(float a) {
    const u32 bits = __float_as_uint(a) & 0x7fffffffu;
    const u64 integer = (u64)((bits & 0x7fffffu) | 0x800000u);
    const int from = 31 + (int)(bits >> 23) - 150;
    const u32 first = (u32)(from < 0 ? 0 : from > 159 ? 159 : from);
    u64 word[3];
#pragma unroll
    for (u32 i = 0; i < 3; ++i) {
        const u32 at = first + 32u * i;
        const u64 pair = (u64)inv_pi_bits[at / 32u] << 32 | (u64)inv_pi_bits[at / 32u + 1u];
        word[i] = pair << (at % 32u) >> 32;
    }
    return ((word[0] * integer) << 32) + (word[1] * integer + ((word[2] * integer) >> 32));
}

//: sin_of_turns
__device__ __forceinline__ float sin_of_turns(u64 turns) {
    i64 t = (i64)turns;
    if (t < -(1ll << 62) || t > 1ll << 62) t = (i64)(0x8000000000000000ull - turns);
    return (float)((double)t * (3.14159265358979323846 / 9223372036854775808.0));
}

//: subtract_turns
__device__ __forceinline__ float subtract_turns(float a, float q) {
    float r = fmaf(q, -__uint_as_float(0x40490fdau), a);
    r = fmaf(q, -__uint_as_float(0x34222168u), r);
    return fmaf(q, -__uint_as_float(0x284234c5u), r);
}

//: sin_arg
__device__ __forceinline__ float sin_arg(float a) {
    if (fabsf(a) < 32768.0f) {
        const float t = fmaf(a, __uint_as_float(0x3ea2f983u), 12582912.0f);
        const float r = subtract_turns(a, t - 12582912.0f);
        return __uint_as_float(__float_as_uint(r) ^ __float_as_uint(t) << 31);
    }
    if (!(fabsf(a) < infinity())) return not_a_number();
    const float r = sin_of_turns(turns(a));
    return __uint_as_float(__float_as_uint(r) ^ (__float_as_uint(a) & 0x80000000u));
}

//: cos_arg
__device__ __forceinline__ float cos_arg(float a) {
    if (fabsf(a) < 32768.0f) {
        const float t = fmaf(a, __uint_as_float(0x3ea2f983u), -0.5f) + 12582912.0f;
        const float r = subtract_turns(a, (t - 12582912.0f) + 0.5f);
        return __uint_as_float(__float_as_uint(r) ^ ~__float_as_uint(t) << 31);
    }
    if (!(fabsf(a) < infinity())) return not_a_number();
    return sin_of_turns(turns(a) + (1ull << 62));
}

//: from_bf16
__device__ __forceinline__ float from_bf16(u16 a) {
    return __uint_as_float((u32)a << 16);
}

//: to_bf16
__device__ __forceinline__ u16 to_bf16(float a) {
    const u32 bits = __float_as_uint(a);
    if (a != a) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

//: from_f16
__device__ __forceinline__ float from_f16(u16 a) {
    const u32 magnitude = ((u32)a & 0x7fffu) << 13;
    // The exponents' biases differ by 112.
    const u32 scaled = __float_as_uint(__uint_as_float(magnitude) * 5192296858534827628530496329220096.0f);
    return __uint_as_float((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : scaled) | ((u32)a & 0x8000u) << 16);
}

//: to_f16
__device__ __forceinline__ u16 to_f16(float a) {
    const u32 bits = __float_as_uint(a), magnitude = bits & 0x7fffffffu;
    u32 half;
    if (magnitude >= 0x47800000u) {
        half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (magnitude < 0x38800000u) {
        // A unit in the last place of 0.5 is the smallest half.
        half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    return (u16)(half | (bits >> 16 & 0x8000u));
}

//: to_i32
__device__ __forceinline__ u32 to_i32(float a) {
    if (a != a) return 0u;
    if (a >= 2147483648.0f) return 0x7fffffffu;
    return a <= -2147483648.0f ? 0x80000000u : (u32)(int)a;
}

//: to_i64
__device__ __forceinline__ i64 to_i64(double a) {
    if (a != a) return 0ll;
    if (a >= 9223372036854775808.0) return 0x7fffffffffffffffll;
    return a <= -9223372036854775808.0 ? (i64)0x8000000000000000ull : (i64)a;
}

//: to_i64_f32
__device__ __forceinline__ i64 to_i64_f32(float a) {
    if (a != a) return 0ll;
    if (a >= 9223372036854775808.0f) return 0x7fffffffffffffffll;
    return a <= -9223372036854775808.0f ? (i64)0x8000000000000000ull : (i64)a;
}

//: quotient
__device__ __forceinline__ i64 quotient(i64 a, i64 b) {
    if (b == 0) return 0;
    return b == -1 ? (i64)(0ull - (u64)a) : a / b;
}

//: remainder_of
__device__ __forceinline__ i64 remainder_of(i64 a, i64 b) {
    return b == 0 || b == -1 ? 0 : a % b;
}

//: integer_power
__device__ __forceinline__ i64 integer_power(i64 a, i64 b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0;
    u64 power = 1, square = (u64)a;
    for (; b > 0; b >>= 1) {
        if (b & 1) power *= square;
        square *= square;
    }
    return (i64)power;
}

//: Pack
// N elements that are loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};

//: load_pack
// N elements from p on, of which `left` are there; at once where p is a multiple of their size.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* p, bool aligned, u32 left) {
    if (aligned && left >= N) return *(const Pack<T, N>*)p;
    Pack<T, N> pack = {};
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k < left) pack.at[k] = p[k];
    }
    return pack;
}

//: store_pack
template <class T, int N>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& pack, bool aligned, u32 left) {
    if (aligned && left >= N) {
        *(Pack<T, N>*)p = pack;
        return;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k < left) p[k] = pack.at[k];
    }
}
