// Matrix products with a defined order of additions.
#pragma once
#include <cstddef>

// One matrix product: element (row, column) of a matrix is at `row * row_step + column * column_step` elements.
struct GemmMatrix {
    char* at;
    int type;  // cudaDataType
    ptrdiff_t row_step, column_step;
};
struct Gemm {
    size_t m, n, k;
    GemmMatrix a, b, c, d;
    double alpha, beta;
    bool tf32;
};
// Per element each slice of 512 along k is one chain of fused multiply-adds from +0 in k order, the slices are added in
// order: in f64 for f64, else in f32; then alpha and beta (0: C is not read), rounded once to D's type.
void gemm(const Gemm&);
