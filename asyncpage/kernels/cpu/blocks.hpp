// The grids of GGUF as they lie in memory here: blocks of 8 output rows by 32 columns, made from the file's blocks
// without loss. Four columns of eight rows are one vector, so that one broadcast of four activations serves eight rows.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace asyncpage {

constexpr int ROWS = 8;      // of a block
constexpr int COLUMNS = 32;  // of a block, and what one scale of the activations is for
constexpr int VECTORS = 8;   // of four columns each

inline __m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline __m256 halves(const uint16_t* at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline float half(uint16_t value) { return _cvtsh_ss(value); }

// What kinds share. Four bits: low ones of byte 4 j + c in vector v are column 4 v + c of row j, high ones column
// 16 + 4 v + c, as the file has them.
struct Nibbles {
    uint8_t low[ROWS * COLUMNS / 2];

    template <int v>
    __m256i four() const {
        const __m256i raw = load(low + 32 * (v & 3));
        return _mm256_and_si256(v < 4 ? raw : _mm256_srli_epi16(raw, 4), _mm256_set1_epi8(15));
    }
    void put_low(const uint8_t* from, int row) {
        for (int v = 0; v < 4; ++v) std::memcpy(low + 32 * v + 4 * row, from + 4 * v, 4);
    }
    int low_at(int row, int column) const {
        const int byte = low[32 * (column >> 2 & 3) + 4 * row + (column & 3)];
        return column < 16 ? byte & 15 : byte >> 4;
    }
};

// The fifth bits: bit v of byte 4 j + c is that of column 4 v + c of row j.
struct Fifths {
    uint8_t high[ROWS * 4];

    template <int v>
    __m256i fifth() const {
        const __m256i raw = load(high);
        const __m256i moved = v < 4 ? _mm256_slli_epi16(raw, v < 4 ? 4 - v : 0) : _mm256_srli_epi16(raw, v < 4 ? 0 : v - 4);
        return _mm256_and_si256(moved, _mm256_set1_epi8(16));
    }
    void put_high(uint32_t bits, int row) {
        for (int c = 0; c < 4; ++c) {
            uint8_t byte = 0;
            for (int v = 0; v < VECTORS; ++v) byte |= static_cast<uint8_t>((bits >> (4 * v + c) & 1) << v);
            high[4 * row + c] = byte;
        }
    }
    int high_at(int row, int column) const { return (high[4 * row + (column & 3)] >> (column >> 2) & 1) << 4; }
};

inline uint32_t word(const uint8_t* from) {
    uint32_t bits;
    std::memcpy(&bits, from, 4);
    return bits;
}

// Each kind: FILE_BYTES of the file's block; LEVELS, the greatest grid value where these are unsigned (the sum of how
// many products fits 16 bits follows from it), 0 where they are signed bytes; `vector<v>()`, `scale()`, `offset()`: a
// weight is scale * value + offset; `put` takes one row from the file; `value` gives one weight as the file means it.
struct Q4_0 : Nibbles {
    static constexpr int FILE_BYTES = 18, LEVELS = 15;
    uint16_t d[ROWS];
    template <int v> __m256i vector() const { return four<v>(); }
    __m256 scale() const { return halves(d); }
    __m256 offset() const { return _mm256_mul_ps(halves(d), _mm256_set1_ps(-8)); }
    void put(const uint8_t* from, int row) { std::memcpy(d + row, from, 2); put_low(from + 2, row); }
    float value(int row, int column) const { return half(d[row]) * static_cast<float>(low_at(row, column) - 8); }
};

struct Q4_1 : Nibbles {
    static constexpr int FILE_BYTES = 20, LEVELS = 15;
    uint16_t d[ROWS], m[ROWS];
    template <int v> __m256i vector() const { return four<v>(); }
    __m256 scale() const { return halves(d); }
    __m256 offset() const { return halves(m); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        std::memcpy(m + row, from + 2, 2);
        put_low(from + 4, row);
    }
    float value(int row, int column) const {
        return half(d[row]) * static_cast<float>(low_at(row, column)) + half(m[row]);
    }
};

struct Q5_0 : Nibbles, Fifths {
    static constexpr int FILE_BYTES = 22, LEVELS = 31;
    uint16_t d[ROWS];
    template <int v> __m256i vector() const { return _mm256_or_si256(four<v>(), fifth<v>()); }
    __m256 scale() const { return halves(d); }
    __m256 offset() const { return _mm256_mul_ps(halves(d), _mm256_set1_ps(-16)); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        put_high(word(from + 2), row);
        put_low(from + 6, row);
    }
    float value(int row, int column) const {
        return half(d[row]) * static_cast<float>(low_at(row, column) + high_at(row, column) - 16);
    }
};

struct Q5_1 : Nibbles, Fifths {
    static constexpr int FILE_BYTES = 24, LEVELS = 31;
    uint16_t d[ROWS], m[ROWS];
    template <int v> __m256i vector() const { return _mm256_or_si256(four<v>(), fifth<v>()); }
    __m256 scale() const { return halves(d); }
    __m256 offset() const { return halves(m); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        std::memcpy(m + row, from + 2, 2);
        put_high(word(from + 4), row);
        put_low(from + 8, row);
    }
    float value(int row, int column) const {
        return half(d[row]) * static_cast<float>(low_at(row, column) + high_at(row, column)) + half(m[row]);
    }
};

struct Q8_0 {
    static constexpr int FILE_BYTES = 34, LEVELS = 0;
    int8_t q[ROWS * COLUMNS];
    uint16_t d[ROWS];
    template <int v> __m256i vector() const { return load(q + 32 * v); }
    __m256 scale() const { return halves(d); }
    void put(const uint8_t* from, int row) {
        std::memcpy(d + row, from, 2);
        for (int v = 0; v < VECTORS; ++v) std::memcpy(q + 32 * v + 4 * row, from + 2 + 4 * v, 4);
    }
    float value(int row, int column) const {
        return half(d[row]) * static_cast<float>(q[32 * (column >> 2) + 4 * row + (column & 3)]);
    }
};

}  // namespace asyncpage
