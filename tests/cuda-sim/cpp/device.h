// What every simulated kernel is compiled with: NVRTC's built-in declarations, as far as stepgraph's kernels use them.
#define STEPGRAPH_SIM 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ __attribute__((unused))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

typedef unsigned long cusim_size_t;
typedef unsigned long size_t;
#define CUSIM_VECTOR(T, N, A2, A4)                                                   \
    struct N##1 { T x; };                                                            \
    struct __attribute__((aligned(A2))) N##2 { T x, y; };                            \
    struct N##3 { T x, y, z; };                                                      \
    struct __attribute__((aligned(A4))) N##4 { T x, y, z, w; };                      \
    static inline N##1 make_##N##1(T x) { return {x}; }                              \
    static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                      \
    static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }              \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUSIM_VECTOR(signed char, char, 2, 4)
CUSIM_VECTOR(unsigned char, uchar, 2, 4)
CUSIM_VECTOR(short, short, 4, 8)
CUSIM_VECTOR(unsigned short, ushort, 4, 8)
CUSIM_VECTOR(int, int, 8, 16)
CUSIM_VECTOR(unsigned, uint, 8, 16)
CUSIM_VECTOR(long long, longlong, 16, 16)
CUSIM_VECTOR(unsigned long long, ulonglong, 16, 16)
CUSIM_VECTOR(float, float, 8, 16)
CUSIM_VECTOR(double, double, 16, 16)
struct dim3 {
    unsigned x, y, z;
};

extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern unsigned char* cusim_dyn;
extern int cusim_reversed;
[[noreturn]] void cusim_trap(const char*);
int cusim_barrier(int, int, int);
unsigned long cusim_warp(int, unsigned, unsigned long, int, int);
void* memcpy(void*, const void*, cusim_size_t);
void* memset(void*, int, cusim_size_t);
int printf(const char*, ...);
#define CUSIM_MATH1(n) double n(double); float n##f(float);
#define CUSIM_MATH2(n) double n(double, double); float n##f(float, float);
CUSIM_MATH1(sin) CUSIM_MATH1(cos) CUSIM_MATH1(tan) CUSIM_MATH1(asin) CUSIM_MATH1(acos) CUSIM_MATH1(atan)
CUSIM_MATH1(sinh) CUSIM_MATH1(cosh) CUSIM_MATH1(tanh) CUSIM_MATH1(asinh) CUSIM_MATH1(acosh) CUSIM_MATH1(atanh)
CUSIM_MATH1(exp) CUSIM_MATH1(exp2) CUSIM_MATH1(expm1) CUSIM_MATH1(log) CUSIM_MATH1(log2) CUSIM_MATH1(log10)
CUSIM_MATH1(log1p) CUSIM_MATH1(logb) CUSIM_MATH1(sqrt) CUSIM_MATH1(cbrt) CUSIM_MATH1(erf) CUSIM_MATH1(erfc)
CUSIM_MATH1(lgamma) CUSIM_MATH1(tgamma) CUSIM_MATH1(floor) CUSIM_MATH1(ceil) CUSIM_MATH1(trunc) CUSIM_MATH1(round)
CUSIM_MATH1(rint) CUSIM_MATH1(nearbyint) CUSIM_MATH1(fabs) CUSIM_MATH2(pow) CUSIM_MATH2(fmod) CUSIM_MATH2(remainder)
CUSIM_MATH2(atan2) CUSIM_MATH2(hypot) CUSIM_MATH2(copysign) CUSIM_MATH2(fdim)
CUSIM_MATH2(nextafter)
CUSIM_MATH1(exp10)
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
double scalbn(double, int);
float scalbnf(float, int);
double frexp(double, int*);
float frexpf(float, int*);
double modf(double, double*);
float modff(float, float*);
void sincos(double, double*, double*);
void sincosf(float, float*, float*);
long long llrint(double);
long long llrintf(float);
int abs(int);
}
// The other operand for a NaN; -0 is less than +0.
#define CUSIM_EXTREME(name, T, less)                                              \
    static inline T cusim_##name(T a, T b) {                                      \
        if (a != a) return b;                                                     \
        if (b != b) return a;                                                     \
        if (a == b) return (__builtin_signbit(a) != 0) == (0 less 1) ? a : b;     \
        return a less b ? a : b;                                                  \
    }
CUSIM_EXTREME(fminf, float, <) CUSIM_EXTREME(fmaxf, float, >) CUSIM_EXTREME(fmin, double, <) CUSIM_EXTREME(fmax, double, >)
#define fminf cusim_fminf
#define fmaxf cusim_fmaxf
// The overloads that C++ adds.
#define CUSIM_OVER(n) static inline float n(float x) { return n##f(x); }
CUSIM_OVER(sin) CUSIM_OVER(cos) CUSIM_OVER(tan) CUSIM_OVER(exp) CUSIM_OVER(log) CUSIM_OVER(sqrt) CUSIM_OVER(floor)
CUSIM_OVER(ceil) CUSIM_OVER(trunc) CUSIM_OVER(rint) CUSIM_OVER(fabs) CUSIM_OVER(tanh) CUSIM_OVER(erf)
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
static inline float fmin(float a, float b) { return fminf(a, b); }
static inline float fmax(float a, float b) { return fmaxf(a, b); }
static inline double fmin(double a, double b) { return cusim_fmin(a, b); }
static inline double fmax(double a, double b) { return cusim_fmax(a, b); }
static inline float abs(float a) { return fabsf(a); }
static inline double abs(double a) { return fabs(a); }
static inline long long llabs(long long a) { return a < 0 ? -a : a; }
static inline long long abs(long long a) { return a < 0 ? -a : a; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }

#define CUSIM_MINMAX(T)                                              \
    static inline T min(T a, T b) { return a < b ? a : b; }          \
    static inline T max(T a, T b) { return a > b ? a : b; }
CUSIM_MINMAX(int) CUSIM_MINMAX(unsigned) CUSIM_MINMAX(long) CUSIM_MINMAX(unsigned long) CUSIM_MINMAX(long long)
CUSIM_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf_sign(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#define CUSIM_BITS(name, T, F) \
    static inline T name(F v) { T r; __builtin_memcpy(&r, &v, sizeof r); return r; }
CUSIM_BITS(__float_as_uint, unsigned, float)
CUSIM_BITS(__float_as_int, int, float)
CUSIM_BITS(__uint_as_float, float, unsigned)
CUSIM_BITS(__int_as_float, float, int)
CUSIM_BITS(__double_as_longlong, long long, double)
CUSIM_BITS(__longlong_as_double, double, long long)
static inline int __double2hiint(double v) { return int(__double_as_longlong(v) >> 32); }
static inline int __double2loint(double v) { return int(__double_as_longlong(v)); }
static inline double __hiloint2double(int hi, int lo) {
    return __longlong_as_double((long long)(((unsigned long long)(unsigned)hi << 32) | (unsigned)lo));
}

// Rounded once, never contracted into a fused operation.
static inline float cusim_keep(float v) { asm volatile("" : "+m"(v)); return v; }
static inline double cusim_keep(double v) { asm volatile("" : "+m"(v)); return v; }
static inline float __fadd_rn(float a, float b) { return cusim_keep(a + b); }
static inline float __fsub_rn(float a, float b) { return cusim_keep(a - b); }
static inline float __fmul_rn(float a, float b) { return cusim_keep(a * b); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return float(1.0 / sqrt(double(a))); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return cusim_keep(a + b); }
static inline double __dsub_rn(double a, double b) { return cusim_keep(a - b); }
static inline double __dmul_rn(double a, double b) { return cusim_keep(a * b); }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }

// cvt: saturates; a NaN becomes 0 unless the source is f64 or the result has 64 bits, then 1 << (bits - 1).
template <class T, class F> static inline T cusim_to_int(F v) {
    constexpr int bits = sizeof(T) * 8;
    constexpr bool is_signed = T(-1) < T(0);
    constexpr T low = is_signed ? T(T(1) << (bits - 1)) : T(0);
    constexpr T high = is_signed ? T(~low) : T(~T(0));
    if (v != v) return sizeof(F) == 8 || bits == 64 ? T((unsigned long long)1 << (bits - 1)) : T(0);
    F limit = F((unsigned long long)1 << (bits - 1)) * (is_signed ? F(1) : F(2));
    if (v >= limit) return high;
    if (v < (is_signed ? -limit : F(0))) return low;
    return T(v);
}
#define CUSIM_CVT(from, F, to, T)                                                                          \
    static inline T __##from##2##to##_rz(F v) { return cusim_to_int<T, F>(trunc(v)); }                      \
    static inline T __##from##2##to##_rn(F v) { return cusim_to_int<T, F>(rint(v)); }                       \
    static inline T __##from##2##to##_rd(F v) { return cusim_to_int<T, F>(floor(v)); }                      \
    static inline T __##from##2##to##_ru(F v) { return cusim_to_int<T, F>(ceil(v)); }
CUSIM_CVT(float, float, int, int) CUSIM_CVT(float, float, uint, unsigned)
CUSIM_CVT(float, float, ll, long long) CUSIM_CVT(float, float, ull, unsigned long long)
CUSIM_CVT(double, double, int, int) CUSIM_CVT(double, double, uint, unsigned)
CUSIM_CVT(double, double, ll, long long) CUSIM_CVT(double, double, ull, unsigned long long)
static inline float __int2float_rn(int v) { return float(v); }
static inline float __uint2float_rn(unsigned v) { return float(v); }
static inline float __ll2float_rn(long long v) { return float(v); }
static inline float __ull2float_rn(unsigned long long v) { return float(v); }
static inline double __int2double_rn(int v) { return double(v); }
static inline double __uint2double_rn(unsigned v) { return double(v); }
static inline double __ll2double_rn(long long v) { return double(v); }
static inline double __ull2double_rn(unsigned long long v) { return double(v); }
static inline float __double2float_rn(double v) { return float(v); }

static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned sel = s >> (4 * i) & 15, byte = v >> (8 * (sel & 7)) & 255;
        if (sel & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return unsigned((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return unsigned(((unsigned long long)hi << 32 | lo) >> (n & 31));
}

#define CUSIM_LOAD(name) template <class T> static inline T name(const T* p) { return *p; }
#define CUSIM_STORE(name) template <class T> static inline void name(T* p, T v) { *p = v; }
CUSIM_LOAD(__ldg) CUSIM_LOAD(__ldcg) CUSIM_LOAD(__ldca) CUSIM_LOAD(__ldcs) CUSIM_LOAD(__ldlu) CUSIM_LOAD(__ldcv)
CUSIM_STORE(__stwb) CUSIM_STORE(__stcg) CUSIM_STORE(__stcs) CUSIM_STORE(__stwt)
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
#define __trap() cusim_trap("__trap")
#define __assume(x) ((void)0)
static inline long long clock64() { return 0; }

// Threads of a block never run at once, so these need no more than order.
#define CUSIM_ATOMIC(name, T, expr) \
    static inline T name(T* p, T v) { T old = *(volatile T*)p; *(volatile T*)p = (expr); return old; }
#define CUSIM_ATOMIC_BITS(T)                                                                      \
    CUSIM_ATOMIC(atomicAnd, T, old & v) CUSIM_ATOMIC(atomicOr, T, old | v) CUSIM_ATOMIC(atomicXor, T, old ^ v)
#define CUSIM_ATOMIC_ORDER(T) CUSIM_ATOMIC(atomicMin, T, old < v ? old : v) CUSIM_ATOMIC(atomicMax, T, old > v ? old : v)
CUSIM_ATOMIC(atomicAdd, int, old + v) CUSIM_ATOMIC(atomicAdd, unsigned, old + v)
CUSIM_ATOMIC(atomicAdd, unsigned long long, old + v) CUSIM_ATOMIC(atomicAdd, float, old + v)
CUSIM_ATOMIC(atomicAdd, double, old + v) CUSIM_ATOMIC(atomicSub, int, old - v) CUSIM_ATOMIC(atomicSub, unsigned, old - v)
CUSIM_ATOMIC_BITS(int) CUSIM_ATOMIC_BITS(unsigned) CUSIM_ATOMIC_BITS(unsigned long long)
CUSIM_ATOMIC_ORDER(int) CUSIM_ATOMIC_ORDER(unsigned) CUSIM_ATOMIC_ORDER(long long) CUSIM_ATOMIC_ORDER(unsigned long long)
CUSIM_ATOMIC(atomicExch, int, v) CUSIM_ATOMIC(atomicExch, unsigned, v) CUSIM_ATOMIC(atomicExch, unsigned long long, v)
CUSIM_ATOMIC(atomicExch, float, v)
CUSIM_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
#define CUSIM_CAS(T) \
    static inline T atomicCAS(T* p, T expected, T v) { T old = *(volatile T*)p; if (old == expected) *(volatile T*)p = v; return old; }
CUSIM_CAS(int) CUSIM_CAS(unsigned) CUSIM_CAS(unsigned long long) CUSIM_CAS(unsigned short)

// The counter tells barriers apart, however the compiler moves or copies the call.
#define __syncthreads() ((void)cusim_barrier(__COUNTER__, 0, 0))
#define __syncthreads_or(p) cusim_barrier(__COUNTER__, (p) != 0, 1)
#define __syncthreads_and(p) cusim_barrier(__COUNTER__, (p) != 0, 2)
#define __syncthreads_count(p) cusim_barrier(__COUNTER__, (p) != 0, 3)
#define CUSIM_FIRST(a, ...) a
#define __syncwarp(...) ((void)cusim_warp(__COUNTER__, CUSIM_FIRST(__VA_ARGS__ __VA_OPT__(,) 0xffffffffu), 0, 0, 1))
#define __ballot_sync(m, p) ((unsigned)cusim_warp(__COUNTER__, m, (p) != 0, 0, 1))
#define __any_sync(m, p) (cusim_warp(__COUNTER__, m, (p) != 0, 0, 1) != 0)
#define __all_sync(m, p) (cusim_warp(__COUNTER__, m, !(p), 0, 1) == 0)
#define __activemask() 0xffffffffu
#define __reduce_add_sync(m, v) cusim_reduce(__COUNTER__, m, v, 2)
#define __reduce_min_sync(m, v) cusim_reduce(__COUNTER__, m, v, 3)
#define __reduce_max_sync(m, v) cusim_reduce(__COUNTER__, m, v, 4)
#define __reduce_and_sync(m, v) cusim_reduce(__COUNTER__, m, v, 7)
#define __reduce_or_sync(m, v) cusim_reduce(__COUNTER__, m, v, 8)
#define __reduce_xor_sync(m, v) cusim_reduce(__COUNTER__, m, v, 9)
#define __match_any_sync(m, v) ((unsigned)cusim_warp(__COUNTER__, m, cusim_word(v), 0, 10))
static inline unsigned cusim_reduce(int id, unsigned m, unsigned v, int mode) { return cusim_warp(id, m, v, 0, mode); }
static inline int cusim_reduce(int id, unsigned m, int v, int mode) {
    return int(cusim_warp(id, m, unsigned(v), 0, mode == 3 || mode == 4 ? mode + 2 : mode));
}
template <class T> static inline unsigned long cusim_word(T v) {
    unsigned long r = 0;
    __builtin_memcpy(&r, &v, sizeof v);
    return r;
}
static inline int cusim_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}
// mode 0: from a lane, 1: up, 2: down, 3: xor; out of the segment: the own value.
template <class T> static inline auto cusim_shuffle(int id, int mode, unsigned mask, T v, int by, int width = 32) {
    // Shorter integers are promoted, as the overloads of int have it.
    if constexpr (sizeof(T) < 4) return cusim_shuffle(id, mode, mask, +v, by, width);
    else {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32- or 64-bit values");
    int lane = cusim_lane(), start = lane & ~(width - 1), end = start + width;
    int source = mode == 0 ? start + (by & (width - 1)) : mode == 1 ? lane - by : mode == 2 ? lane + by : lane ^ by;
    if (source >= end || (mode == 1 && source < start)) source = lane;
    unsigned long word = cusim_warp(id, mask, cusim_word(v), source, 0);
    T r;
    __builtin_memcpy(&r, &word, sizeof r);
    return r;
    }
}
#define __shfl_sync(...) cusim_shuffle(__COUNTER__, 0, __VA_ARGS__)
#define __shfl_up_sync(...) cusim_shuffle(__COUNTER__, 1, __VA_ARGS__)
#define __shfl_down_sync(...) cusim_shuffle(__COUNTER__, 2, __VA_ARGS__)
#define __shfl_xor_sync(...) cusim_shuffle(__COUNTER__, 3, __VA_ARGS__)

template <class T> struct cusim_dynamic {
    operator T*() const { return (T*)cusim_dyn; }
};

// Entry points: parameter types are deduced, so that a launch can copy what the pointers show.
struct CusimKernel {
    const char* name;
    unsigned params;
    const unsigned* sizes;
    void (*plain)(void**);
    void (*thread)(void**);
    unsigned bounds;
    unsigned char *shared_start, *shared_stop;
};
template <unsigned... I> struct cusim_seq {};
template <class F, F* f> struct cusim_entry;
template <class... A, void (*f)(A...)> struct cusim_entry<void(A...), f> {
    static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    static constexpr unsigned count = sizeof...(A);
    template <unsigned... I> static inline void call(void** p, cusim_seq<I...>) { f(*(A*)p[I]...); }
    static void thread(void** p) { call(p, cusim_seq<__integer_pack(sizeof...(A))...>()); }
    static void plain(void** p) {
        unsigned n = blockDim.x * blockDim.y * blockDim.z;
        bool flat = blockDim.y * blockDim.z == 1;
        for (unsigned i = 0; i < n; i++) {
            unsigned t = cusim_reversed ? n - 1 - i : i;
            if (flat) threadIdx = {t, 0, 0};
            else threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
            call(p, cusim_seq<__integer_pack(sizeof...(A))...>());
        }
    }
};
#define CUSIM_KERNEL(name, bounds, start, stop)                                                              \
    {#name, cusim_entry<decltype(name), name>::count, cusim_entry<decltype(name), name>::sizes,              \
     cusim_entry<decltype(name), name>::plain, cusim_entry<decltype(name), name>::thread, bounds, start, stop}
