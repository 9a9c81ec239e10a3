// A list of operators over buffers of rows, run in one call: what lies between a decoder's embedding and its head.
//
// A row's numbers are made of that row alone, by the same operations in the same order whatever the other rows are;
// rows meet in attention only, which is called as its backend says.
#include "stack.hpp"

#include <cmath>

#include "pool.hpp"
#include "product.hpp"
#include "simd.hpp"

namespace asyncpage {
namespace {

constexpr int64_t PIECE = 1 << 14;  // numbers that one thread takes at a time, where rows are many

struct RowJob {
    const Run& run;
    const Instruction& of;
    int64_t step;
    const float* from(int64_t row) const {
        const Buffer& buffer = run.buffers[of.from];
        return buffer.at + row * buffer.stride + of.from_at;
    }
    float* to(int64_t row) const {
        const Buffer& buffer = run.buffers[of.to];
        return buffer.at + row * buffer.stride + of.to_at;
    }
};

// Each vector of `width` numbers, and what is left behind the last whole one, through `each`.
template <class Each>
inline void over(int64_t width, const Each& each) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) each(i, LANES);
    if (i < width) each(i, width - i);
}
inline Floats take(const float* at, int64_t count) { return count == LANES ? load(at) : load_some(at, count); }
inline void put(float* at, Floats x, int64_t count) { count == LANES ? store(at, x) : store_some(at, x, count); }

inline void normalise(const float* x, const float* weight, float* y, int64_t width, float eps) {
    Floats squares = all(0.0f);
    over(width, [&](int64_t i, int64_t count) {
        const Floats part = take(x + i, count);
        squares = fused(part, part, squares);
    });
    const Floats factor = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
    over(width, [&](int64_t i, int64_t count) {
        put(y + i, multiply(multiply(take(x + i, count), factor), take(weight + i, count)), count);
    });
}

inline Floats activated(int64_t kind, Floats x) {
    const Floats one = all(1.0f);
    switch (kind) {
        case SILU: return divide(x, add(one, exponential(subtract(all(0.0f), x))));
        case GELU_TANH: {
            const Floats cubed = multiply(multiply(x, x), x);
            const Floats inner = multiply(all(0.7978845608f), fused(all(0.044715f), cubed, x));
            return multiply(multiply(all(0.5f), x), add(one, hyperbolic_tangent(inner)));
        }
        default: return greater(all(0.0f), x);
    }
}

// Items i and i + width / 2 of each head turn together; those beyond `width` stay.
inline void turn(float* x, int64_t heads, int64_t head_dim, int64_t width, const float* cosines, const float* sines) {
    const int64_t half = width / 2;
    for (int64_t head = 0; head < heads; ++head, x += head_dim) {
        over(half, [&](int64_t i, int64_t count) {
            const Floats first = take(x + i, count), second = take(x + half + i, count);
            const Floats left = multiply(first, take(cosines + i, count));
            const Floats right = multiply(second, take(cosines + half + i, count));
            put(x + i, fused(second, take(sines + i, count), left), count);
            put(x + half + i, fused(first, take(sines + half + i, count), right), count);
        });
    }
}

void do_row(const RowJob& job, int64_t row) {
    const Instruction& of = job.of;
    const float* from = job.from(row);
    float* to = job.to(row);
    const float* weight = static_cast<const float*>(of.weight);
    const auto eps = static_cast<float>(of.eps);
    switch (of.operation) {
        case NORM: return normalise(from, weight, to, of.width, eps);
        case HEAD_NORM:
            for (int64_t head = 0; head < of.heads; ++head) {
                normalise(from + head * of.width, weight + head * of.width, to + head * of.width, of.width, eps);
            }
            return;
        case BIAS:
            return over(of.width, [&](int64_t i, int64_t count) {
                put(to + i, add(take(to + i, count), take(weight + i, count)), count);
            });
        case ADD:
            return over(of.width, [&](int64_t i, int64_t count) {
                put(to + i, add(take(to + i, count), take(from + i, count)), count);
            });
        case GATE:
            return over(of.width, [&](int64_t i, int64_t count) {
                put(to + i, multiply(activated(of.kind, take(from + i, count)), take(from + of.width + i, count)), count);
            });
        case TURN: {
            const Angles& angles = job.run.angles[of.kind];
            const int64_t at = job.run.positions[row] * of.width;
            return turn(to, of.heads, of.outputs, of.width, angles.cosines + at, angles.sines + at);
        }
        default: return;
    }
}

void do_piece(const void* of, int64_t piece) {
    const RowJob& job = *static_cast<const RowJob*>(of);
    const int64_t last = std::min(job.run.rows, (piece + 1) * job.step);
    for (int64_t row = piece * job.step; row < last; ++row) do_row(job, row);
}

bool execute(const Run& run, const Instruction& of) {
    const Buffer &from = run.buffers[of.from], &to = run.buffers[of.to];
    const int threads = static_cast<int>(run.threads);
    if (of.operation == PRODUCT) {
        return linear(static_cast<int>(of.kind), of.weight, from.at + of.from_at, to.at + of.to_at, run.rows, of.columns,
                      of.outputs, from.stride, to.stride, of.adds != 0, threads) == 0;
    }
    if (of.operation == ATTEND) {
        of.write(of.group, of.step, of.layer, from.at + of.k_at, from.stride, from.at + of.v_at, from.stride);
        of.attend(of.group, of.step, of.layer, from.at + of.from_at, from.stride, to.at, to.stride, nullptr);
        return true;
    }
    RowJob job{run, of, 1};
    const int64_t width = of.width * std::max<int64_t>(1, of.heads);
    job.step = std::max<int64_t>(1, PIECE / width);
    pool()(do_piece, &job, (run.rows + job.step - 1) / job.step, threads);
    return true;
}

}  // namespace
}  // namespace asyncpage

using namespace asyncpage;

// Runs a list of operators. Returns 0, or 1 where there is no memory.
EXPORTED int asyncpage_stack(const Run* run) {
    for (int64_t i = 0; i < run->count; ++i) if (!execute(*run, run->instructions[i])) return 1;
    return 0;
}
