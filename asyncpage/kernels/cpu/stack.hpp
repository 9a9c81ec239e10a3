// What a list of operators is made of; see stack.py.
#pragma once

#include <cstdint>

namespace asyncpage {

// In the order of `Operation` in stack.py.
enum Operation : int64_t { NORM, PRODUCT, BIAS, HEAD_NORM, TURN, ATTEND, GATE, ADD };
enum Activation : int64_t { SILU, GELU_TANH, RELU };

using Write = void (*)(const void* group, const void* step, const void* layer, const float* k, int64_t k_stride,
                       const float* v, int64_t v_stride);
using Attend = void (*)(const void* group, const void* step, const void* layer, const float* q, int64_t q_stride,
                        float* out, int64_t out_stride, float* lse);

// One operator: from columns `from_at` on of buffer `from` to columns `to_at` on of buffer `to`. See stack.py.
struct Instruction {
    int64_t operation, from, from_at, to, to_at;
    int64_t kind, columns, outputs, adds;
    int64_t heads, width;
    const void* weight;
    double eps;
    Write write;
    Attend attend;
    const void *group, *step, *layer;
    int64_t k_at, v_at;
};

struct Buffer {
    float* at;
    int64_t stride;
};

struct Angles {
    const float *cosines, *sines;  // [positions, width]
};

struct Run {
    const Instruction* instructions;
    int64_t count, rows, threads;
    const Buffer* buffers;
    const Angles* angles;
    const int64_t* positions;  // [rows]
};

}  // namespace asyncpage
