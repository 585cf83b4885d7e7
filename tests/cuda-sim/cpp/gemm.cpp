#pragma GCC optimize("O2")
#include "gemm.h"
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };
constexpr size_t SLICE = 512, ROWS = 4, VECTORS = 3;

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint32_t to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float widen_half(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        float v = std::ldexp(float(mantissa), -24);
        return sign ? -v : v;
    }
    return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static uint16_t round_half(float f) {
    uint32_t u = to_bits(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    if (rest > 0x7f800000) return sign | 0x7e00;
    if (rest >= 0x477ff000) return sign | 0x7c00;  // from 65520 on it rounds to infinity
    if (rest < 0x38800000) {
        // Subnormal: multiples of 2^-24, ties to even by the current rounding mode.
        return sign | uint16_t(std::nearbyint(std::ldexp(from_bits(rest), 24)));
    }
    return sign | uint16_t((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

static uint16_t round_bfloat(float f) {
    uint32_t u = to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (u >> 16) | 0x40;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// To 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does.
static float round_tf32(float f) {
    uint32_t u = to_bits(f);
    return (u & 0x7f800000) == 0x7f800000 ? f : from_bits((u + 0x1000) & ~0x1fffu);
}

template <class T> static T load(const GemmMatrix& x, ptrdiff_t at) {
    switch (x.type) {
    case F32: return T(((float*)x.at)[at]);
    case F64: return T(((double*)x.at)[at]);
    case F16: return T(widen_half(((uint16_t*)x.at)[at]));
    default: return T(from_bits(uint32_t(((uint16_t*)x.at)[at]) << 16));
    }
}

template <class T> static void store(const GemmMatrix& x, ptrdiff_t at, T v) {
    switch (x.type) {
    case F32: ((float*)x.at)[at] = v; break;
    case F64: ((double*)x.at)[at] = v; break;
    case F16: ((uint16_t*)x.at)[at] = round_half(v); break;
    default: ((uint16_t*)x.at)[at] = round_bfloat(v);
    }
}

template <class T> struct Wide {
    typedef T Vector __attribute__((vector_size(32)));
    static constexpr size_t LANES = 32 / sizeof(T), COLUMNS = LANES * VECTORS;
};

// One slice of a tile: `b` holds, per step along k, one row of the tile's columns.
template <class T> static void tile(const T* a, size_t a_step, const T* b, size_t k, T* out) {
    typedef typename Wide<T>::Vector V;
    V sum[ROWS][VECTORS] = {};
    for (size_t p = 0; p < k; p++) {
        const V* row = (const V*)(b + p * Wide<T>::COLUMNS);
#pragma GCC unroll 8
        for (size_t i = 0; i < ROWS; i++)
#pragma GCC unroll 8
            for (size_t j = 0; j < VECTORS; j++) {
                V x = V{} + a[i * a_step + p];
#if defined(__FMA__) || defined(__aarch64__)
                sum[i][j] = x * row[j] + sum[i][j];  // contracted into fused operations: see the compiler's options
#else
                for (size_t l = 0; l < Wide<T>::LANES; l++) sum[i][j][l] = std::fma(x[l], row[j][l], sum[i][j][l]);
#endif
            }
    }
    memcpy(out, sum, sizeof sum);
}

template <class T> static void product(const Gemm& g) {
    constexpr size_t C = Wide<T>::COLUMNS;
    size_t m = (g.m + ROWS - 1) / ROWS * ROWS, n = (g.n + C - 1) / C * C;
    std::vector<T> a(m * g.k), b_memory(n * g.k + 8), sums(ROWS * C);
    T* b = (T*)((uintptr_t(b_memory.data()) + 31) / 32 * 32);
    auto operand = [&](const GemmMatrix& x, size_t row, size_t column) {
        T v = load<T>(x, row * x.row_step + column * x.column_step);
        return g.tf32 ? T(round_tf32(float(v))) : v;
    };
    for (size_t i = 0; i < g.m; i++)
        for (size_t p = 0; p < g.k; p++) a[i * g.k + p] = operand(g.a, i, p);
    for (size_t j = 0; j < g.n; j++)
        for (size_t p = 0; p < g.k; p++) b[j / C * C * g.k + p * C + j % C] = operand(g.b, p, j);
    alignas(32) T part[ROWS * C];
    for (size_t j = 0; j < n; j += C)
        for (size_t i = 0; i < m; i += ROWS) {
            for (size_t from = 0; from < g.k; from += SLICE) {
                size_t k = std::min(SLICE, g.k - from);
                tile<T>(&a[i * g.k + from], g.k, b + j * g.k + from * C, k, part);
                for (size_t e = 0; e < ROWS * C; e++) sums[e] = from ? sums[e] + part[e] : part[e];
            }
            for (size_t r = 0; r < ROWS && i + r < g.m; r++)
                for (size_t c = 0; c < C && j + c < g.n; c++) {
                    T v = g.k ? sums[r * C + c] : T(0);
                    volatile T scaled = T(g.alpha) * v;
                    v = scaled;
                    if (g.beta != 0) {
                        volatile T old =
                            T(g.beta) * load<T>(g.c, (i + r) * g.c.row_step + (j + c) * g.c.column_step);
                        v = v + old;
                    }
                    store<T>(g.d, (i + r) * g.d.row_step + (j + c) * g.d.column_step, v);
                }
        }
}

void gemm(const Gemm& g) {
    if (g.d.type == F64) product<double>(g);
    else product<float>(g);
}
