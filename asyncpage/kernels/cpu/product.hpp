// The product of rows and a table, for the rest of the library and for Python.
#pragma once

#include <cstdint>

// What Python calls, through ctypes; the rest of the library keeps its names to itself.
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace asyncpage {

// y [rows, outputs] = x [rows, columns] times the table's [outputs, columns], transposed; where it `adds`, y grows by
// that. Rows begin `x_stride` and `y_stride` numbers from one another. `kind`: a place in LAYOUTS of quantised.py. Not
// to be called from within a job of the pool. Returns 0, or 1 where there is no memory.
int linear(int kind, const void* table, const float* x, float* y, int64_t rows, int64_t columns, int64_t outputs,
           int64_t x_stride, int64_t y_stride, bool adds, int threads);

}  // namespace asyncpage

// The same.
EXPORTED int asyncpage_linear(int kind, const void* table, const float* x, float* y, int64_t rows, int64_t columns,
                              int64_t outputs, int64_t x_stride, int64_t y_stride, int adds, int threads);
