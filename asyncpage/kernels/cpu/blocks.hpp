// The grids of GGUF as they lie in memory here: blocks of ROWS output rows, made from the file's blocks without loss.
// Four columns of each of the rows are one vector, so that one broadcast of four activations serves them all.
#pragma once

#include <cstdint>
#include <cstring>

#include "integers.hpp"

namespace asyncpage {

constexpr int ROWS = LANES;  // of a block
constexpr int COLUMNS = 32;  // what one scale of the activations is for
constexpr int VECTORS = COLUMNS / 4;

// Each kind: a block is WIDTH columns, and FILE_BYTES in the file. `vector` gives numbers as `dot` takes them, up to
// LEVELS, of which CENTRE stands for zero. Every `sub`, 32 columns, has PARTS parts, each with its `scale`: a weight is
// scale * (number - CENTRE), and `offset` more where the kind HAS_OFFSET. `put` takes one row from the file, `read`
// gives one as the file means it.

// What kinds share. Four bits: low ones of byte 4 j + c in vector v are column 4 v + c of row j, high ones column
// 16 + 4 v + c.
struct Nibbles {
    uint8_t low[ROWS * COLUMNS / 2];

    template <int v>
    Bytes four() const {
        const Bytes raw = load_bytes(low + 4 * ROWS * (v & 3));
        return masked(v < 4 ? raw : shifted<-4>(raw), 15);
    }
    void put_low(const uint8_t* from, int row) {
        for (int v = 0; v < 4; ++v) std::memcpy(low + 4 * (ROWS * v + row), from + 4 * v, 4);
    }
    // The same of a byte for each column.
    void put_levels(const uint8_t* level, int row) {
        uint8_t both[COLUMNS / 2];
        for (int i = 0; i < COLUMNS / 2; ++i) both[i] = static_cast<uint8_t>(level[i] | level[i + COLUMNS / 2] << 4);
        put_low(both, row);
    }
    void read_low(int row, uint8_t* to) const {
        for (int v = 0; v < 4; ++v) {
            for (int c = 0; c < 4; ++c) {
                const uint8_t both = low[4 * (ROWS * v + row) + c];
                to[4 * v + c] = both & 15;
                to[16 + 4 * v + c] = both >> 4;
            }
        }
    }
};

// The fifth bits: bit v of byte 4 j + c is that of column 4 v + c of row j.
struct Fifths {
    uint8_t high[ROWS * 4];

    template <int v>
    Bytes fifth() const { return masked(shifted<4 - v>(load_bytes(high)), 16); }
    void put_high(uint32_t bits, int row) {
        for (int c = 0; c < 4; ++c) {
            uint8_t byte = 0;
            for (int v = 0; v < VECTORS; ++v) byte |= static_cast<uint8_t>((bits >> (4 * v + c) & 1) << v);
            high[4 * row + c] = byte;
        }
    }
    void add_high(int row, uint8_t* to) const {
        for (int i = 0; i < COLUMNS; ++i) to[i] |= static_cast<uint8_t>((high[4 * row + (i & 3)] >> (i >> 2) & 1) << 4);
    }
};

inline uint32_t word(const uint8_t* from) {
    uint32_t bits;
    std::memcpy(&bits, from, 4);
    return bits;
}

// A scale for every 32 columns.
template <int levels, int centre, bool has_offset, int file_bytes>
struct Plain {
    static constexpr int WIDTH = COLUMNS, PARTS = 1, LEVELS = levels, CENTRE = centre, FILE_BYTES = file_bytes;
    static constexpr bool HAS_OFFSET = has_offset;
};

struct Q4_0 : Plain<15, 8, false, 18>, Nibbles {
    uint16_t d[ROWS];
    template <int v> Bytes vector(int) const { return four<v>(); }
    Floats scale(int, int) const { return load_half(d); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        put_low(from + 2, row);
    }
    void read(int row, float* to) const {
        uint8_t level[COLUMNS];
        read_low(row, level);
        for (int i = 0; i < COLUMNS; ++i) to[i] = half(d[row]) * static_cast<float>(level[i] - 8);
    }
};

struct Q4_1 : Plain<15, 0, true, 20>, Nibbles {
    uint16_t d[ROWS], m[ROWS];
    template <int v> Bytes vector(int) const { return four<v>(); }
    Floats scale(int, int) const { return load_half(d); }
    Floats offset(int) const { return load_half(m); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        std::memcpy(m + row, from + 2, 2);
        put_low(from + 4, row);
    }
    void read(int row, float* to) const {
        uint8_t level[COLUMNS];
        read_low(row, level);
        for (int i = 0; i < COLUMNS; ++i) to[i] = half(d[row]) * static_cast<float>(level[i]) + half(m[row]);
    }
};

struct Q5_0 : Plain<31, 16, false, 22>, Nibbles, Fifths {
    uint16_t d[ROWS];
    template <int v> Bytes vector(int) const { return joined(four<v>(), fifth<v>()); }
    Floats scale(int, int) const { return load_half(d); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        put_high(word(from + 2), row);
        put_low(from + 6, row);
    }
    void read(int row, float* to) const {
        uint8_t level[COLUMNS];
        read_low(row, level);
        add_high(row, level);
        for (int i = 0; i < COLUMNS; ++i) to[i] = half(d[row]) * static_cast<float>(level[i] - 16);
    }
};

struct Q5_1 : Plain<31, 0, true, 24>, Nibbles, Fifths {
    uint16_t d[ROWS], m[ROWS];
    template <int v> Bytes vector(int) const { return joined(four<v>(), fifth<v>()); }
    Floats scale(int, int) const { return load_half(d); }
    Floats offset(int) const { return load_half(m); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        std::memcpy(m + row, from + 2, 2);
        put_high(word(from + 4), row);
        put_low(from + 8, row);
    }
    void read(int row, float* to) const {
        uint8_t level[COLUMNS];
        read_low(row, level);
        add_high(row, level);
        for (int i = 0; i < COLUMNS; ++i) to[i] = half(d[row]) * static_cast<float>(level[i]) + half(m[row]);
    }
};

struct Q8_0 : Plain<SIGNED_LEVELS, SIGNED_CENTRE, false, 34> {
    uint8_t q[ROWS * COLUMNS];  // modulo 256, with SIGNED_CENTRE for zero
    uint16_t d[ROWS];
    template <int v> Bytes vector(int) const { return load_bytes(q + 4 * ROWS * v); }
    Floats scale(int, int) const { return load_half(d); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        for (int i = 0; i < COLUMNS; ++i) q[place(i, row)] = static_cast<uint8_t>(from[2 + i] + SIGNED_CENTRE);
    }
    void read(int row, float* to) const {
        for (int i = 0; i < COLUMNS; ++i) {
            to[i] = half(d[row]) * static_cast<float>(static_cast<int8_t>(q[place(i, row)] - SIGNED_CENTRE));
        }
    }
    static int place(int column, int row) { return 4 * (ROWS * (column >> 2) + row) + (column & 3); }
};

// A column of numbers that are on no grid.
struct F32 {
    static constexpr int WIDTH = 1, FILE_BYTES = 4;
    float w[ROWS];
    void put(const uint8_t* from, int row) { std::memcpy(w + row, from, 4); }
    void read(int row, float* to) const { *to = w[row]; }
};

}  // namespace asyncpage
