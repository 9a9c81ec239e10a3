// What Python calls, through ctypes: pack a table, multiply rows by it, read rows of it.
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "kblocks.hpp"
#include "linear.hpp"
#include "pool.hpp"
#include "product.hpp"

namespace asyncpage {
namespace {

constexpr int PANEL = 64;  // rows of activations that the second-level cache keeps while the table goes by
constexpr int GROUPS = 4;  // of ROWS outputs, that the narrowest tile has

template <class Block>
constexpr bool IS_ROUNDED = !std::is_same_v<Block, F32>;

// Rows of the widest tile. In float32 eight rows by two groups need fewer numbers of the rows than sixteen by one: with
// AVX-512 64 rows by 576 x 1536 took 845 and not 965 us.
template <class Block>
constexpr int MOST_ROWS = IS_ROUNDED<Block> ? WIDEST : 8;

// Tiles of the most rows, then one each of half, a quarter and so on: the width of the next where `left` rows are left.
template <class Block>
int next_width(int64_t left) {
    int width = MOST_ROWS<Block>;
    while (width > left) width /= 2;
    return width;
}

// How many groups of outputs a tile has: with few rows, several streams of the table keep memory busy. On a grid twice
// as many spill with AVX2: two rows by 576 x 1536 of Q4_1 took 55 and not 41 us.
template <class Block>
constexpr int groups_of(int width) {
    return std::max(1, std::min(GROUPS, (IS_ROUNDED<Block> ? WIDEST / 4 : WIDEST) / width));
}

struct Job {
    const void* table;
    const float* x;
    float* y;
    int8_t* q;
    float* s;
    int64_t rows, columns, outputs, x_stride, y_stride;
    bool adds;
    int64_t groups;  // of ROWS outputs
    int64_t step;    // groups in a piece
    int64_t pieces;  // in a panel
};

template <class Block>
Tile tile_at(const Job& job, int64_t row) {
    return {job.q + row * job.columns, job.s + row * SIDE<Block> * (job.columns / COLUMNS)};
}

// A piece: one panel, rounded.
template <class Block>
void round_piece(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t stop = std::min(job.rows, (piece + 1) * PANEL);
    for (int64_t row = piece * PANEL; row < stop;) {
        const int width = next_width<Block>(stop - row);
        const Tile tile = tile_at<Block>(job, row);
        for (int m = 0; m < width; ++m) {
            round_row<Block>(job.x + (row + m) * job.x_stride, job.columns / COLUMNS, tile, width, m);
        }
        row += width;
    }
}

template <class Block, int width, int groups>
void run_tile(const Job& job, int64_t group, int64_t row) {
    Floats out[groups * width];
    const int64_t count = job.columns / Block::WIDTH;
    const Block* table = static_cast<const Block*>(job.table) + group * count;
    if constexpr (IS_ROUNDED<Block>) {
        multiply_tile<Block, width, groups>(table, count, tile_at<Block>(job, row), out);
    } else {
        multiply_floats<width, groups>(table, count, job.x + row * job.x_stride, job.x_stride, out);
    }
    for (int g = 0; g < groups; ++g) {
        const int64_t first = (group + g) * ROWS, left = job.outputs - first;
        for (int m = 0; m < width; ++m) {
            const Floats found = out[g * width + m];
            float* y = job.y + (row + m) * job.y_stride + first;
            if (left >= ROWS) {
                store(y, job.adds ? add(load(y), found) : found);
            } else {
                store_some(y, job.adds ? add(load_some(y, left), found) : found, left);
            }
        }
    }
}

// Groups from `first` to before `last`, GROUPS of them or fewer.
template <class Block, int width>
void run_groups(const Job& job, int64_t first, int64_t last, int64_t row) {
    constexpr int groups = groups_of<Block>(width);
    int64_t group = first;
    for (; group + groups <= last; group += groups) run_tile<Block, width, groups>(job, group, row);
    for (; group < last; ++group) run_tile<Block, width, 1>(job, group, row);
}

template <class Block, int most>
void run_width(const Job& job, int64_t first, int64_t last, int64_t row, int width) {
    if constexpr (most > 1) {
        if (width < most) return run_width<Block, most / 2>(job, first, last, row, width);
    }
    run_groups<Block, most>(job, first, last, row);
}

template <class Block>
void run_piece(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t begin = piece / job.pieces * PANEL, end = std::min(job.rows, begin + PANEL);
    const int64_t start = piece % job.pieces * job.step, stop = std::min(job.groups, start + job.step);
    for (int64_t first = start; first < stop; first += GROUPS) {
        const int64_t last = std::min(stop, first + GROUPS);
        for (int64_t row = begin; row < end;) {
            const int width = next_width<Block>(end - row);
            run_width<Block, MOST_ROWS<Block>>(job, first, last, row, width);
            row += width;
        }
    }
}

template <class Block>
int64_t bytes(int64_t outputs, int64_t columns) {
    return (outputs + ROWS - 1) / ROWS * (columns / Block::WIDTH) * static_cast<int64_t>(sizeof(Block));
}

template <class Block>
void pack(const uint8_t* from, int64_t outputs, int64_t columns, int64_t first, void* table) {
    const int64_t count = columns / Block::WIDTH;
    for (int64_t output = 0; output < outputs; ++output) {
        const int64_t at = first + output;
        Block* to = static_cast<Block*>(table) + at / ROWS * count;
        for (int64_t b = 0; b < count; ++b, from += Block::FILE_BYTES) to[b].put(from, static_cast<int>(at % ROWS));
    }
}

// Every one of `ids` is a row of the table.
template <class Block>
void read(const void* table, int64_t columns, const int64_t* ids, int64_t count, float* out) {
    const int64_t blocks = columns / Block::WIDTH;
    for (int64_t n = 0; n < count; ++n) {
        const Block* from = static_cast<const Block*>(table) + ids[n] / ROWS * blocks;
        const int row = static_cast<int>(ids[n] % ROWS);
        for (int64_t b = 0; b < blocks; ++b, out += Block::WIDTH) from[b].read(row, out);
    }
}

struct Kind {
    Pool::Run round;  // nullptr where activations are not
    Pool::Run run;
    int side;  // numbers beside each 32 bytes of rounded activations
    int64_t (*bytes)(int64_t, int64_t);
    void (*pack)(const uint8_t*, int64_t, int64_t, int64_t, void*);
    void (*read)(const void*, int64_t, const int64_t*, int64_t, float*);
};

template <class Block>
constexpr Kind kind() {
    if constexpr (IS_ROUNDED<Block>) {
        return {round_piece<Block>, run_piece<Block>, SIDE<Block>, bytes<Block>, pack<Block>, read<Block>};
    } else {
        return {nullptr, run_piece<Block>, 0, bytes<Block>, pack<Block>, read<Block>};
    }
}

// In the order of LAYOUTS in quantised.py.
const Kind KINDS[] = {
    kind<Q4_0>(), kind<Q4_1>(), kind<Q5_0>(), kind<Q5_1>(), kind<Q8_0>(),
    kind<Q4_K>(), kind<Q5_K>(), kind<Q6_K>(), kind<F32>(),
};

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
    const Kind& how = KINDS[kind];
    Job job{};
    if (how.round != nullptr) {
        const size_t quanta = static_cast<size_t>(rows * columns);
        const size_t sides = quanta / COLUMNS * static_cast<size_t>(how.side);
        job.q = scratch.take(quanta + sizeof(float) * sides);
        if (job.q == nullptr) return 1;
        job.s = reinterpret_cast<float*>(job.q + quanta);
    }
    job.table = table;
    job.x = x;
    job.y = y;
    job.rows = rows;
    job.columns = columns;
    job.outputs = outputs;
    job.x_stride = x_stride;
    job.y_stride = y_stride;
    job.adds = adds;
    job.groups = (outputs + ROWS - 1) / ROWS;
    const int64_t panels = (rows + PANEL - 1) / PANEL;
    // Four pieces for each thread, so that one which is held up leaves its share to the others.
    const int64_t wanted = threads <= 1 ? 1 : std::max<int64_t>(1, 4 * threads / panels);
    job.step = std::max<int64_t>(1, (job.groups + wanted - 1) / wanted);
    job.pieces = (job.groups + job.step - 1) / job.step;
    if (how.round != nullptr) pool()(how.round, &job, panels, threads);
    pool()(how.run, &job, panels * job.pieces, threads);
    return 0;
}

}  // namespace asyncpage

using namespace asyncpage;

// Bytes of a table of `outputs` rows of `columns`.
EXPORTED int64_t asyncpage_table_bytes(int kind, int64_t outputs, int64_t columns) {
    return KINDS[kind].bytes(outputs, columns);
}

// Puts `outputs` rows of the file's blocks into a table that was all zeros, from its row `first` on.
EXPORTED void asyncpage_pack(int kind, const uint8_t* from, int64_t outputs, int64_t columns, int64_t first,
                             void* table) {
    KINDS[kind].pack(from, outputs, columns, first, table);
}

// Rows `ids` of a table of `outputs` in float32, as the file means them. Returns 0, or 1 where one is no row of it.
EXPORTED int asyncpage_read(int kind, const void* table, int64_t outputs, int64_t columns, const int64_t* ids,
                            int64_t count, float* out) {
    if (std::any_of(ids, ids + count, [=](int64_t id) { return id < 0 || id >= outputs; })) return 1;
    KINDS[kind].read(table, columns, ids, count, out);
    return 0;
}

EXPORTED int asyncpage_linear(int kind, const void* table, const float* x, float* y, int64_t rows, int64_t columns,
                              int64_t outputs, int64_t x_stride, int64_t y_stride, int adds, int threads) {
    return linear(kind, table, x, y, rows, columns, outputs, x_stride, y_stride, adds != 0, threads);
}
