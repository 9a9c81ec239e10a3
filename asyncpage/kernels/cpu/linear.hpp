// Rows of float32 activations times a table of blocks. On a grid activations are rounded to eight bits per row and 32
// columns; products are summed as integers within a block and in float32 across blocks, in the order of the columns.
//
// What a row is given is made of that row and the table alone, by the same operations in the same order whatever the
// other rows are and however many threads work: every shape of tile has one and the same arithmetic.
#pragma once

#include <utility>

#include "blocks.hpp"

namespace asyncpage {

// A tile of `width` rounded rows of activations x, about s * q. For each 32 columns: for each vector and row four bytes
// of q; `width` of s; and for each of the block's parts `width` numbers, what the part's sum of products begins with,
// -CENTRE * sum(q), or where there is an offset what that is multiplied by, s * sum(q).
struct Tile {
    int8_t* q;
    float* s;
};

template <class Block>
constexpr int SIDE = 1 + Block::PARTS;  // numbers beside 32 bytes of q

// Of a row's 32 activations. A block that has a NaN or an infinity is NaN; one with nothing above 2^-100 is zero.
template <class Block>
inline void round_block(const float* x, int8_t* to, float* s, int width) {
    constexpr int count = COLUMNS / LANES, share = count / Block::PARTS;
    Floats part[count];
    Ints most = zeros();
    for (int i = 0; i < count; ++i) {
        part[i] = load(x + LANES * i);
        // Bits of magnitudes are in the order of their values, infinity and NaN above all others.
        most = greater(most, magnitude_bits(part[i]));
    }
    const int32_t bits = greatest(most);
    float peak;
    std::memcpy(&peak, &bits, 4);
    const bool is_whole = bits < 0x7f800000, is_zero = bits < 0x0d800000;
    const float scale = is_whole ? (is_zero ? 0.0f : peak / 127.0f) : __builtin_nanf("");
    const Floats factor = all(is_whole && !is_zero ? 127.0f / peak : 0.0f);
    alignas(64) int8_t row[COLUMNS];
    int32_t sums[Block::PARTS];
    for (int p = 0; p < Block::PARTS; ++p) {
        Ints total = zeros();
        for (int i = p * share; i < (p + 1) * share; ++i) {
            const Ints q = is_whole ? rounded(multiply(part[i], factor)) : zeros();
            store_bytes(row + LANES * i, q);
            total = plus(total, q);
        }
        sums[p] = sum(total);
    }
    for (int v = 0; v < VECTORS; ++v) std::memcpy(to + 4 * v * width, row + 4 * v, 4);
    *s = scale;
    for (int p = 0; p < Block::PARTS; ++p) {
        if constexpr (Block::HAS_OFFSET) {
            s[(1 + p) * width] = scale * static_cast<float>(sums[p]);
        } else {
            const int32_t start = -Block::CENTRE * sums[p];
            std::memcpy(s + (1 + p) * width, &start, 4);
        }
    }
}

template <class Block>
inline void round_row(const float* x, int64_t blocks, Tile tile, int width, int row) {
    for (int64_t b = 0; b < blocks; ++b) {
        round_block<Block>(x + b * COLUMNS, tile.q + (b * VECTORS * width + row) * 4,
                           tile.s + SIDE<Block> * b * width + row, width);
    }
}

// How many bytes of a table are asked of memory ahead of their use. With AVX-512 on an Emerald Rapids, 576 x 1536 of
// Q4_1 from memory took 39, 59 and 70 us for 1, 4 and 8 rows without, 34, 46 and 53 with 1280, 35, 44 and 46 with 2560,
// and 37, 47 and 45 with 4096.
constexpr int AHEAD = 2560;

// Asks for as many bytes as a step of a product reads.
inline void fetch_ahead(const void* at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + AHEAD + i);
}

// Adds the products of vectors `first + v` to the totals of a tile's rows.
template <class Block, int width, int first, int... v>
inline void add_products(const Block& block, int sub, const int8_t* q, Ints* totals, std::integer_sequence<int, v...>) {
    Ints open[width];
    const auto step = [&](auto place) __attribute__((always_inline)) {
        constexpr int at = decltype(place)::value;
        const Bytes w = block.template vector<first + at>(sub);
#pragma GCC unroll 16
        for (int m = 0; m < width; ++m) {
            const Bytes x = four_of(q + ((first + at) * width + m) * 4);
            dot<Block::LEVELS, at, sizeof...(v) - 1>(totals[m], open[m], w, x);
        }
    };
    (step(std::integral_constant<int, v>()), ...);
}

// 32 columns of ROWS outputs times a tile: q and s are those of these columns.
template <class Block, int width, int part>
inline void multiply_part(const Block& block, int sub, const int8_t* q, const float* s, Floats* out) {
    constexpr int share = VECTORS / Block::PARTS;
    Ints totals[width];
#pragma GCC unroll 16
    for (int m = 0; m < width; ++m) {
        int32_t start = 0;
        if (Block::CENTRE != 0) std::memcpy(&start, s + (1 + part) * width + m, 4);
        totals[m] = all_ints(start);
    }
    add_products<Block, width, part * share>(block, sub, q, totals, std::make_integer_sequence<int, share>());
    const Floats scale = block.scale(sub, part);
#pragma GCC unroll 16
    for (int m = 0; m < width; ++m) out[m] = fused(multiply(scale, all(s[m])), floats(totals[m]), out[m]);
    if constexpr (Block::HAS_OFFSET) {
        const Floats offset = block.offset(sub);
#pragma GCC unroll 16
        for (int m = 0; m < width; ++m) out[m] = fused(offset, all(s[width + m]), out[m]);
    }
}

// `groups` times ROWS rows of the table, each of `count` blocks, times a tile; the tile's row m gets the numbers of
// group g in out[g * width + m].
template <class Block, int width, int groups>
inline void multiply_tile(const Block* table, int64_t count, Tile tile, Floats* out) {
    for (int i = 0; i < groups * width; ++i) out[i] = all(0.0f);
    const int8_t* q = tile.q;
    const float* s = tile.s;
    for (int64_t b = 0; b < count; ++b) {
        for (int sub = 0; sub < Block::WIDTH / COLUMNS; ++sub, q += COLUMNS * width, s += SIDE<Block> * width) {
#pragma GCC unroll 8
            for (int g = 0; g < groups; ++g) {
                const Block& block = table[g * count + b];
                constexpr size_t step = sizeof(Block) / (Block::WIDTH / COLUMNS);
                fetch_ahead(reinterpret_cast<const char*>(&block) + step * static_cast<size_t>(sub), step);
                multiply_part<Block, width, 0>(block, sub, q, s, out + g * width);
                if constexpr (Block::PARTS == 2) multiply_part<Block, width, 1>(block, sub, q, s, out + g * width);
            }
        }
    }
}

// The same for numbers on no grid: one fused multiplication and addition for each column, in their order.
template <int width, int groups>
inline void multiply_floats(const F32* table, int64_t count, const float* x, int64_t x_stride, Floats* out) {
    for (int i = 0; i < groups * width; ++i) out[i] = all(0.0f);
    for (int64_t b = 0; b < count; ++b) {
#pragma GCC unroll 8
        for (int g = 0; g < groups; ++g) {
            const F32& column = table[g * count + b];
            fetch_ahead(&column, sizeof(F32));
            const Floats w = load(column.w);
#pragma GCC unroll 16
            for (int m = 0; m < width; ++m) out[g * width + m] = fused(w, all(x[m * x_stride + b]), out[g * width + m]);
        }
    }
}

}  // namespace asyncpage
