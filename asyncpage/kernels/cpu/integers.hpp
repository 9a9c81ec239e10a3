// Vectors of bytes and of 32-bit integers, four bytes where `simd.hpp` has one number, for products on a grid.
//
// Every sum here is exact, so that none depends on the order in which it was taken.
#pragma once

#include "simd.hpp"

namespace asyncpage {

#if defined(__AVX512VNNI__)

using Bytes = __m512i;
using Ints = __m512i;

// What is added to signed bytes so that `dot` can have them, and the greatest level that they then have.
constexpr int SIGNED_CENTRE = 128, SIGNED_LEVELS = 255;
// Rows of the widest tile of a product. Of 8, 12 and 16, 64 rows by 576 x 1536 of Q4_1 took 317, 296 and 282 us.
constexpr int WIDEST = 16;

inline Bytes load_bytes(const void* at) { return _mm512_loadu_si512(at); }
inline Ints zeros() { return _mm512_setzero_si512(); }
inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Bytes masked(Bytes a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask))); }
inline Bytes joined(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
// To the left by n bits, to the right by -n; what crosses from a byte to the next is for the caller to mask.
template <int n>
inline Bytes shifted(Bytes a) {
    return n >= 0 ? _mm512_slli_epi16(a, n >= 0 ? n : 0) : _mm512_srli_epi16(a, n < 0 ? -n : 0);
}
inline Floats floats(Ints a) { return _mm512_cvtepi32_ps(a); }
// Numbers of magnitudes up to 2^31, to the nearest, halves to even.
inline Ints rounded(Floats a) { return _mm512_cvtps_epi32(a); }
inline Ints magnitude_bits(Floats a) { return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)); }
inline Ints greater(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t greatest(Ints a) { return _mm512_reduce_max_epi32(a); }
inline int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a); }
// Of numbers that are bytes.
inline void store_bytes(int8_t* at, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(a));
}
inline Floats load_small(const int8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline float half(uint16_t value) { return _cvtsh_ss(value); }

// total += products of four unsigned levels up to `levels` and four signed bytes. `place`: how many came before of the
// `last` + 1 that are added; `open` is carried from one to the next.
template <int levels, int place, int last>
inline void dot(Ints& total, Ints&, Bytes w, Bytes x) { total = _mm512_dpbusd_epi32(total, w, x); }

#elif defined(__AVX2__)

using Bytes = __m256i;
using Ints = __m256i;

// Signed bytes have no levels: 0.
constexpr int SIGNED_CENTRE = 0, SIGNED_LEVELS = 0;
// Rows of the widest tile of a product. Of 4 and 8, 64 rows by 576 x 1536 of Q4_1 took 741 and 684 us.
constexpr int WIDEST = 8;

inline Bytes load_bytes(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline Ints zeros() { return _mm256_setzero_si256(); }
inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline Bytes masked(Bytes a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(mask))); }
inline Bytes joined(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
// To the left by n bits, to the right by -n; what crosses from a byte to the next is for the caller to mask.
template <int n>
inline Bytes shifted(Bytes a) {
    return n >= 0 ? _mm256_slli_epi16(a, n >= 0 ? n : 0) : _mm256_srli_epi16(a, n < 0 ? -n : 0);
}
inline Floats floats(Ints a) { return _mm256_cvtepi32_ps(a); }
// Numbers of magnitudes up to 2^31, to the nearest, halves to even.
inline Ints rounded(Floats a) { return _mm256_cvtps_epi32(a); }
inline Ints magnitude_bits(Floats a) { return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff)); }
inline Ints greater(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline int32_t greatest(Ints a) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline int32_t sum(Ints a) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
// Of numbers that are bytes.
inline void store_bytes(int8_t* at, Ints a) {
    const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packs_epi16(pairs, pairs));
}
inline Floats load_small(const int8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
inline float half(uint16_t value) { return _cvtsh_ss(value); }
// Keeps a value in a register: compilers would rather hoist loads until sums are spilled.
inline void pin(Ints& value) { asm volatile("" : "+x"(value)); }

// total += products of four unsigned levels up to `levels`, or of four signed bytes, and four signed bytes, none of
// them -128. `place`: how many came before of the `last` + 1 that are added; `open` is carried from one to the next.
template <int levels, int place, int last>
inline void dot(Ints& total, Ints& open, Bytes w, Bytes x) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (levels == SIGNED_LEVELS) {
        // Two products of at most 128 * 127 fit 16 bits, four do not.
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
        pin(total);
    } else {
        // How many vectors' pairs of products add up within 16 bits.
        constexpr int most = 32767 / (2 * 127 * levels), run = most >= 8 ? 8 : most >= 4 ? 4 : 2;
        static_assert(most >= 2, "too many levels");
        const __m256i pairs = _mm256_maddubs_epi16(w, x);
        open = place % run == 0 ? pairs : _mm256_add_epi16(open, pairs);
        pin(open);
        if (place % run == run - 1 || place == last) total = _mm256_add_epi32(total, _mm256_madd_epi16(open, ones));
    }
}

#elif defined(__ARM_NEON)

using Bytes = int8x16_t;
using Ints = int32x4_t;

// Signed bytes have no levels: 0.
constexpr int SIGNED_CENTRE = 0, SIGNED_LEVELS = 0;
// Rows of the widest tile of a product: sums and totals of eight are half of the registers.
constexpr int WIDEST = 8;

inline Bytes load_bytes(const void* at) { return vld1q_s8(static_cast<const int8_t*>(at)); }
inline Ints zeros() { return vdupq_n_s32(0); }
inline Ints all_ints(int32_t x) { return vdupq_n_s32(x); }
inline Bytes masked(Bytes a, int mask) { return vandq_s8(a, vdupq_n_s8(static_cast<int8_t>(mask))); }
inline Bytes joined(Bytes a, Bytes b) { return vorrq_s8(a, b); }
// To the left by n bits, to the right by -n.
template <int n>
inline Bytes shifted(Bytes a) { return vreinterpretq_s8_u8(vshlq_u8(vreinterpretq_u8_s8(a), vdupq_n_s8(n))); }
inline Floats floats(Ints a) { return vcvtq_f32_s32(a); }
// Numbers of magnitudes up to 2^31, to the nearest, halves to even.
inline Ints rounded(Floats a) { return vcvtnq_s32_f32(a); }
inline Ints magnitude_bits(Floats a) { return vandq_s32(vreinterpretq_s32_f32(a), vdupq_n_s32(0x7fffffff)); }
inline Ints greater(Ints a, Ints b) { return vmaxq_s32(a, b); }
inline Ints plus(Ints a, Ints b) { return vaddq_s32(a, b); }
inline int32_t greatest(Ints a) { return vmaxvq_s32(a); }
inline int32_t sum(Ints a) { return vaddvq_s32(a); }
// Of numbers that are bytes.
inline void store_bytes(int8_t* at, Ints a) {
    const int16x4_t pairs = vmovn_s32(a);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(pairs, pairs));
    std::memcpy(at, &bytes, 4);
}
inline Floats load_small(const int8_t* at) {
    int8x8_t bytes = vdup_n_s8(0);
    std::memcpy(&bytes, at, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
inline float half(uint16_t value) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(value))), 0); }

// total += products of four levels, or of four signed bytes, and four signed bytes.
template <int levels, int place, int last>
inline void dot(Ints& total, Ints&, Bytes w, Bytes x) { total = vdotq_s32(total, w, x); }

#endif

// The four bytes at `at`, for each number.
inline Bytes four_of(const int8_t* at) {
    int32_t bytes;
    std::memcpy(&bytes, at, 4);
#if defined(__ARM_NEON)
    return vreinterpretq_s8_s32(all_ints(bytes));
#else
    return all_ints(bytes);
#endif
}

}  // namespace asyncpage
