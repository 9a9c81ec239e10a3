// What Python calls, through ctypes: pack a table, multiply rows by it, read rows of it.
#include <cstdlib>
#include <memory>

#include "linear.hpp"
#include "pool.hpp"
#include "product.hpp"

namespace asyncpage {
namespace {

constexpr int PANEL = 64;  // rows of activations that the second-level cache keeps while the table goes by
constexpr int WIDEST = 8;

// Tiles of 8 rows, then one each of 4, 2 and 1: where the one that holds `row` begins, and its width.
inline int width_at(int64_t row, int64_t rows) {
    const int64_t left = rows - row;
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

struct Job {
    const void* table;
    const float* x;
    float* y;
    int8_t* q;
    float* s;
    int64_t rows, columns, outputs, x_stride, y_stride, blocks;
    bool adds;
    int64_t groups;      // of eight outputs
    int64_t step;        // groups in a piece
    int64_t pieces;      // in a panel

    Tile tile(int64_t row) const { return {q + row * columns, s + row * 2 * blocks}; }
};

// A piece: one tile's width of rows, rounded.
void round_piece(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t stop = std::min(job.rows, (piece + 1) * PANEL);
    for (int64_t row = piece * PANEL; row < stop;) {
        const int width = width_at(row, stop);
        for (int m = 0; m < width; ++m) round_row(job.x + (row + m) * job.x_stride, job.blocks, job.tile(row), width, m);
        row += width;
    }
}

template <class Block, int width>
void run_tile(const Job& job, int64_t group, int64_t row) {
    __m256 out[width];
    multiply_tile<Block, width>(static_cast<const Block*>(job.table) + group * job.blocks, job.blocks, job.tile(row), out);
    const int64_t first = group * ROWS, count = job.outputs - first;
    for (int m = 0; m < width; ++m) {
        float* y = job.y + (row + m) * job.y_stride + first;
        if (count >= ROWS) {
            store(y, job.adds ? add(load(y), out[m]) : out[m]);
        } else {
            store_some(y, job.adds ? add(load_some(y, count), out[m]) : out[m], count);
        }
    }
}

template <class Block>
void run_piece(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t begin = piece / job.pieces * PANEL, end = std::min(job.rows, begin + PANEL);
    const int64_t first = piece % job.pieces * job.step, last = std::min(job.groups, first + job.step);
    for (int64_t group = first; group < last; ++group) {
        for (int64_t row = begin; row < end;) {
            const int width = width_at(row, end);
            switch (width) {
                case 8: run_tile<Block, 8>(job, group, row); break;
                case 4: run_tile<Block, 4>(job, group, row); break;
                case 2: run_tile<Block, 2>(job, group, row); break;
                default: run_tile<Block, 1>(job, group, row);
            }
            row += width;
        }
    }
}

template <class Block>
int64_t bytes(int64_t outputs, int64_t columns) {
    return (outputs + ROWS - 1) / ROWS * (columns / COLUMNS) * static_cast<int64_t>(sizeof(Block));
}

template <class Block>
void pack(const uint8_t* from, int64_t outputs, int64_t columns, int64_t first, void* table) {
    const int64_t blocks = columns / COLUMNS;
    for (int64_t output = 0; output < outputs; ++output) {
        const int64_t at = first + output;
        Block* to = static_cast<Block*>(table) + at / ROWS * blocks;
        for (int64_t b = 0; b < blocks; ++b, from += Block::FILE_BYTES) to[b].put(from, static_cast<int>(at % ROWS));
    }
}

// Every one of `ids` is a row of the table.
template <class Block>
void read(const void* table, int64_t columns, const int64_t* ids, int64_t count, float* out) {
    const int64_t blocks = columns / COLUMNS;
    for (int64_t n = 0; n < count; ++n) {
        const Block* from = static_cast<const Block*>(table) + ids[n] / ROWS * blocks;
        for (int64_t column = 0; column < columns; ++column) {
            *out++ = from[column / COLUMNS].value(static_cast<int>(ids[n] % ROWS), static_cast<int>(column % COLUMNS));
        }
    }
}

struct Kind {
    Pool::Run run;
    int64_t (*bytes)(int64_t, int64_t);
    void (*pack)(const uint8_t*, int64_t, int64_t, int64_t, void*);
    void (*read)(const void*, int64_t, const int64_t*, int64_t, float*);
};

template <class Block>
constexpr Kind kind() {
    return {run_piece<Block>, bytes<Block>, pack<Block>, read<Block>};
}

// In the order of KINDS in quantised.py.
const Kind KINDS[] = {kind<Q4_0>(), kind<Q4_1>(), kind<Q5_0>(), kind<Q5_1>(), kind<Q8_0>()};

// Activations of the job under way, kept between calls.
struct Scratch {
    int8_t* at = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(at); }

    int8_t* take(size_t wanted) {
        if (wanted > size) {
            std::free(at);
            size = (wanted + 4095) / 4096 * 4096;
            at = static_cast<int8_t*>(std::aligned_alloc(64, size));
            if (at == nullptr) size = 0;
        }
        return at;
    }
};
thread_local Scratch scratch;

}  // namespace

int linear(int kind, const void* table, const float* x, float* y, int64_t rows, int64_t columns, int64_t outputs,
           int64_t x_stride, int64_t y_stride, bool adds, int threads) {
    if (rows == 0) return 0;  // as in a step that ends no prompt
    const int64_t blocks = columns / COLUMNS;
    const size_t row_bytes = static_cast<size_t>(columns + 8 * blocks);
    int8_t* at = scratch.take(row_bytes * static_cast<size_t>(rows) + 64);
    if (at == nullptr) return 1;
    Job job{};
    job.table = table;
    job.x = x;
    job.y = y;
    job.q = at;
    job.s = reinterpret_cast<float*>(at + (columns * rows + 31) / 32 * 32);
    job.rows = rows;
    job.columns = columns;
    job.outputs = outputs;
    job.x_stride = x_stride;
    job.y_stride = y_stride;
    job.adds = adds;
    job.blocks = blocks;
    job.groups = (outputs + ROWS - 1) / ROWS;
    const int64_t panels = (rows + PANEL - 1) / PANEL;
    // Four pieces for each thread, so that one which is held up leaves its share to the others.
    const int64_t wanted = threads <= 1 ? 1 : std::max<int64_t>(1, 4 * threads / panels);
    job.step = std::max<int64_t>(1, (job.groups + wanted - 1) / wanted);
    job.pieces = (job.groups + job.step - 1) / job.step;
    pool()(round_piece, &job, panels, threads);
    pool()(KINDS[kind].run, &job, panels * job.pieces, threads);
    return 0;
}

}  // namespace asyncpage

using namespace asyncpage;

// Bytes of a table of `outputs` rows of `columns`.
EXPORTED int64_t asyncpage_table_bytes(int kind, int64_t outputs, int64_t columns) { return KINDS[kind].bytes(outputs, columns); }

// Puts `outputs` rows of the file's blocks into a table that was all zeros, from its row `first` on.
EXPORTED void asyncpage_pack(int kind, const uint8_t* from, int64_t outputs, int64_t columns, int64_t first, void* table) {
    KINDS[kind].pack(from, outputs, columns, first, table);
}

// Rows `ids` of a table of `outputs` in float32, as the file means them. Returns 0, or 1 where one is no row of it.
EXPORTED int asyncpage_read(int kind, const void* table, int64_t outputs, int64_t columns, const int64_t* ids, int64_t count,
                            float* out) {
    if (std::any_of(ids, ids + count, [=](int64_t id) { return id < 0 || id >= outputs; })) return 1;
    KINDS[kind].read(table, columns, ids, count, out);
    return 0;
}

EXPORTED int asyncpage_linear(int kind, const void* table, const float* x, float* y, int64_t rows, int64_t columns,
                              int64_t outputs, int64_t x_stride, int64_t y_stride, int adds, int threads) {
    return linear(kind, table, x, y, rows, columns, outputs, x_stride, y_stride, adds != 0, threads);
}
