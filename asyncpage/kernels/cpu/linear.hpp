// Rows of float32 activations times a table of blocks: activations are rounded to eight bits per row and 32 columns,
// products are summed as integers within a block and in float32 across blocks, in the order of the columns.
//
// What a row is given is made of that row and the table alone, by the same operations in the same order whatever the
// other rows are and however many threads work: every tile width has one and the same arithmetic.
#pragma once

#include <algorithm>
#include <utility>

#include "blocks.hpp"
#include "simd.hpp"

namespace asyncpage {

// Of a row's 32 activations: bytes q, and the pair (s, s * sum(q)); x is about s * q.
// A block that has a NaN or an infinity is NaN; one with nothing above 2^-100 is zero.
inline void round_block(const float* x, int8_t* to, int64_t stride, float* scale, float* sum) {
    __m256 part[4];
    __m256i most = _mm256_setzero_si256();
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (int i = 0; i < 4; ++i) {
        part[i] = _mm256_loadu_ps(x + 8 * i);
        // Bits of magnitudes are in the order of their values, infinity and NaN above all others.
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(part[i]), magnitude));
    }
    __m128i most4 = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    most4 = _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0x4e));
    most4 = _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0xb1));
    const int32_t bits = _mm_cvtsi128_si32(most4);
    float greatest;
    std::memcpy(&greatest, &bits, 4);
    const bool is_whole = bits < 0x7f800000, is_zero = bits < 0x0d800000;
    *scale = is_whole ? (is_zero ? 0.0f : greatest / 127.0f) : __builtin_nanf("");
    const __m256 factor = _mm256_set1_ps(is_whole && !is_zero ? 127.0f / greatest : 0.0f);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = is_whole ? _mm256_cvtps_epi32(_mm256_mul_ps(part[i], factor)) : _mm256_setzero_si256();
    const __m256i total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i total4 = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    total4 = _mm_add_epi32(total4, _mm_shuffle_epi32(total4, 0x4e));
    total4 = _mm_add_epi32(total4, _mm_shuffle_epi32(total4, 0xb1));
    *sum = *scale * static_cast<float>(_mm_cvtsi128_si32(total4));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    alignas(32) int8_t row[COLUMNS];
    _mm256_store_si256(reinterpret_cast<__m256i*>(row), bytes);
    for (int v = 0; v < VECTORS; ++v) std::memcpy(to + v * stride, row + 4 * v, 4);
}

// A tile of `width` rows of activations: for each block of columns, vector and row four bytes, and `width` scales
// followed by `width` sums.
struct Tile {
    int8_t* q;
    float* s;
};

inline void round_row(const float* x, int64_t blocks, Tile tile, int width, int row) {
    for (int64_t b = 0; b < blocks; ++b) {
        round_block(x + b * COLUMNS, tile.q + (b * VECTORS * width + row) * 4, 4 * width,
                    tile.s + 2 * b * width + row, tile.s + (2 * b + 1) * width + row);
    }
}

// Keeps a value in a register: compilers would rather hoist loads until sums are spilled.
inline void pin(__m256i& value) { asm volatile("" : "+x"(value)); }

inline __m256i four_of(const int8_t* at) {
    int32_t bytes;
    std::memcpy(&bytes, at, 4);
    return _mm256_set1_epi32(bytes);
}

// One block of a tile: integer sums of eight rows for each of the tile's rows.
template <class Block, int width, int... v>
inline void multiply(const Block& block, const int8_t* q, __m256i* sums, std::integer_sequence<int, v...>) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (Block::LEVELS == 0) {
        for (int m = 0; m < width; ++m) sums[m] = _mm256_setzero_si256();
        const auto step = [&](__m256i w, const int8_t* at) __attribute__((always_inline)) {
            const __m256i magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
            for (int m = 0; m < width; ++m) {
                // Two products of at most 128 * 127 fit 16 bits, four do not.
                const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four_of(at + 4 * m), w));
                sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(pairs, ones));
                pin(sums[m]);
            }
        };
        (step(block.template vector<v>(), q + v * width * 4), ...);
    } else {
        // How many vectors' pairs of products add up within 16 bits.
        constexpr int run = std::min(VECTORS, 32767 / (2 * 127 * Block::LEVELS));
        static_assert(VECTORS % run == 0 || run >= 4, "a run is 8 or 4 vectors");
        constexpr int length = run >= 8 ? 8 : 4;
        __m256i pairs[width];
        const auto step = [&](__m256i w, const int8_t* at, int place) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int m = 0; m < width; ++m) {
                const __m256i products = _mm256_maddubs_epi16(w, four_of(at + 4 * m));
                pairs[m] = place % length == 0 ? products : _mm256_add_epi16(pairs[m], products);
                pin(pairs[m]);
            }
            if (place % length == length - 1) {
#pragma GCC unroll 8
                for (int m = 0; m < width; ++m) {
                    const __m256i whole = _mm256_madd_epi16(pairs[m], ones);
                    sums[m] = place < length ? whole : _mm256_add_epi32(sums[m], whole);
                }
            }
        };
        (step(block.template vector<v>(), q + v * width * 4, v), ...);
    }
}

// Eight rows of the table, `blocks` blocks, times a tile; out[m] is where the tile's row m gets its eight numbers.
template <class Block, int width>
inline void multiply_tile(const Block* table, int64_t blocks, Tile tile, __m256* out) {
    for (int m = 0; m < width; ++m) out[m] = _mm256_setzero_ps();
    const int8_t* q = tile.q;
    const float* s = tile.s;
    for (int64_t b = 0; b < blocks; ++b, q += VECTORS * width * 4, s += 2 * width) {
        const Block& block = table[b];
        __m256i sums[width];
        multiply<Block, width>(block, q, sums, std::make_integer_sequence<int, VECTORS>());
        const __m256 scale = block.scale();
#pragma GCC unroll 8
        for (int m = 0; m < width; ++m) {
            const __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(s + m));
            out[m] = _mm256_fmadd_ps(both, _mm256_cvtepi32_ps(sums[m]), out[m]);
        }
        if constexpr (Block::LEVELS != 0) {
            const __m256 offset = block.offset();
#pragma GCC unroll 8
            for (int m = 0; m < width; ++m) {
                out[m] = _mm256_fmadd_ps(offset, _mm256_broadcast_ss(s + width + m), out[m]);
            }
        }
    }
}

}  // namespace asyncpage
