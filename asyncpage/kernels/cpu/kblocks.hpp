// The grids of GGUF whose blocks are 256 columns, as they lie in memory here: see `blocks.hpp`. Scales that the file
// packs into six bits have a byte each; everything else takes what it takes in the file.
#pragma once

#include "blocks.hpp"

namespace asyncpage {

constexpr int SUBS = 8;  // times 32 columns

// A byte for each 32 columns' scale and another for their minimum, in units of two numbers of the whole block: a weight
// is d * scale * level - dmin * minimum.
template <class Levels>
struct ScaledBlock {
    static constexpr int WIDTH = SUBS * COLUMNS, PARTS = 1, CENTRE = 0;
    static constexpr bool HAS_OFFSET = true;
    struct Sub : Levels {
        int8_t scale[ROWS], minimum[ROWS];
    };
    Sub subs[SUBS];
    uint16_t d[ROWS], dmin[ROWS];

    Floats scale(int sub, int) const { return multiply(load_half(d), load_small(subs[sub].scale)); }
    Floats offset(int sub) const {
        return subtract(all(0.0f), multiply(load_half(dmin), load_small(subs[sub].minimum)));
    }
    // `from`: the two halves, then eight scales and eight minima of six bits: the first four of each in the low bits of
    // four bytes, the others' low four bits in the last four bytes and their high two on top of the first.
    void put_scales(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        std::memcpy(dmin + row, from + 2, 2);
        const uint8_t *scales = from + 4, *minima = from + 8, *low = from + 12;
        for (int i = 0; i < 4; ++i) {
            subs[i].scale[row] = static_cast<int8_t>(scales[i] & 63);
            subs[i].minimum[row] = static_cast<int8_t>(minima[i] & 63);
            subs[i + 4].scale[row] = static_cast<int8_t>((low[i] & 15) | (scales[i] >> 6) << 4);
            subs[i + 4].minimum[row] = static_cast<int8_t>(low[i] >> 4 | (minima[i] >> 6) << 4);
        }
    }
    void read_sub(int sub, int row, const uint8_t* level, float* to) const {
        const float by = half(d[row]) * static_cast<float>(subs[sub].scale[row]);
        const float less = half(dmin[row]) * static_cast<float>(subs[sub].minimum[row]);
        for (int i = 0; i < COLUMNS; ++i) to[i] = by * static_cast<float>(level[i]) - less;
    }
};

// Nibbles of the file: the low ones of 32 bytes are one sub-block, the high ones the next.
inline void four_bits(const uint8_t* from, int sub, uint8_t* level) {
    for (int i = 0; i < COLUMNS; ++i) level[i] = from[32 * (sub >> 1) + i] >> (4 * (sub & 1)) & 15;
}

struct Q4_K : ScaledBlock<Nibbles> {
    static constexpr int FILE_BYTES = 144, LEVELS = 15;
    template <int v> Bytes vector(int sub) const { return subs[sub].template four<v>(); }
    void put(const uint8_t* from, int row) {
        put_scales(from, row);
        for (int sub = 0; sub < SUBS; ++sub) {
            uint8_t level[COLUMNS];
            four_bits(from + 16, sub, level);
            subs[sub].put_levels(level, row);
        }
    }
    void read(int row, float* to) const {
        for (int sub = 0; sub < SUBS; ++sub) {
            uint8_t level[COLUMNS];
            subs[sub].read_low(row, level);
            read_sub(sub, row, level, to + COLUMNS * sub);
        }
    }
};

struct FiveBits : Nibbles, Fifths {};

struct Q5_K : ScaledBlock<FiveBits> {
    static constexpr int FILE_BYTES = 176, LEVELS = 31;
    template <int v> Bytes vector(int sub) const {
        return joined(subs[sub].template four<v>(), subs[sub].template fifth<v>());
    }
    // The fifth bits of sub-block n are bits n of 32 bytes.
    void put(const uint8_t* from, int row) {
        put_scales(from, row);
        for (int sub = 0; sub < SUBS; ++sub) {
            uint8_t level[COLUMNS];
            uint32_t bits = 0;
            four_bits(from + 48, sub, level);
            for (int i = 0; i < COLUMNS; ++i) bits |= static_cast<uint32_t>(from[16 + i] >> sub & 1) << i;
            subs[sub].put_levels(level, row);
            subs[sub].put_high(bits, row);
        }
    }
    void read(int row, float* to) const {
        for (int sub = 0; sub < SUBS; ++sub) {
            uint8_t level[COLUMNS];
            subs[sub].read_low(row, level);
            subs[sub].add_high(row, level);
            read_sub(sub, row, level, to + COLUMNS * sub);
        }
    }
};

// Six bits and a signed scale for each 16 columns, in units of one number of the whole block.
struct Q6_K {
    static constexpr int WIDTH = SUBS * COLUMNS, PARTS = 2, LEVELS = 63, CENTRE = 32, FILE_BYTES = 210;
    static constexpr bool HAS_OFFSET = false;
    struct Sub : Nibbles {
        uint8_t high[2][ROWS * 4];  // two bits of byte 4 j + c of v / 4, from 2 (v % 4) on: column 4 v + c of row j
        int8_t scale[2][ROWS];
    };
    Sub subs[SUBS];
    uint16_t d[ROWS];

    template <int v> Bytes vector(int sub) const {
        const Bytes high = shifted<4 - 2 * (v & 3)>(load_bytes(subs[sub].high[v >> 2]));
        return joined(subs[sub].template four<v>(), masked(high, 48));
    }
    Floats scale(int sub, int part) const { return multiply(load_half(d), load_small(subs[sub].scale[part])); }

    // Each half of the file's block is four times 32 columns: their low bits in the low and then the high nibbles of 64
    // bytes, their high ones in the four pairs of bits of 32.
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from + 208, 2);
        for (int sub = 0; sub < SUBS; ++sub) {
            const int side = sub >> 2, quarter = sub & 3;
            const uint8_t *low = from + 64 * side + 32 * (quarter & 1), *high = from + 128 + 32 * side;
            Sub& to = subs[sub];
            uint8_t level[COLUMNS];
            for (int i = 0; i < COLUMNS; ++i) {
                level[i] = low[i] >> (4 * (quarter >> 1)) & 15;
                const int bits = high[i] >> (2 * quarter) & 3;
                to.high[i >> 4][4 * row + (i & 3)] |= static_cast<uint8_t>(bits << (2 * (i >> 2 & 3)));
            }
            to.put_levels(level, row);
            for (int part = 0; part < 2; ++part) {
                to.scale[part][row] = static_cast<int8_t>(from[192 + 2 * sub + part]);
            }
        }
    }
    void read(int row, float* to) const {
        for (int sub = 0; sub < SUBS; ++sub) {
            const Sub& from = subs[sub];
            uint8_t level[COLUMNS];
            from.read_low(row, level);
            for (int i = 0; i < COLUMNS; ++i) {
                const int bits = from.high[i >> 4][4 * row + (i & 3)] >> (2 * (i >> 2 & 3)) & 3;
                const float by = half(d[row]) * static_cast<float>(from.scale[i >> 4][row]);
                *to++ = by * static_cast<float>((level[i] | bits << 4) - 32);
            }
        }
    }
};

}  // namespace asyncpage
