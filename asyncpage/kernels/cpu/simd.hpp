// Vectors of float32 as the processor that this is compiled for has them: LANES numbers, and what is done with them.
//
// Nothing here depends on how many rows or threads there are; a sum of lanes is always taken in the same order.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace asyncpage {

#if defined(__AVX512F__) && defined(__AVX512VL__)

constexpr int LANES = 16;
using Floats = __m512;

inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* at) { return _mm512_loadu_ps(at); }
inline void store(float* at, Floats x) { _mm512_storeu_ps(at, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
// a * b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// The second where either is NaN.
inline Floats greater(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats lesser(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x * 2^n for whole n that leave it a normal number.
inline Floats scaled(Floats x, Floats n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
inline Floats load_half(const uint16_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline Floats load_brain(const uint16_t* at) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

#elif defined(__AVX2__)

constexpr int LANES = 8;
using Floats = __m256;

inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* at) { return _mm256_loadu_ps(at); }
inline void store(float* at, Floats x) { _mm256_storeu_ps(at, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
// a * b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
// The second where either is NaN.
inline Floats greater(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats lesser(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats nearest(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x * 2^n for whole n that leave it a normal number.
inline Floats scaled(Floats x, Floats n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
inline Floats load_half(const uint16_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline Floats load_brain(const uint16_t* at) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}

#elif defined(__ARM_NEON)

constexpr int LANES = 4;
using Floats = float32x4_t;

inline Floats all(float x) { return vdupq_n_f32(x); }
inline Floats load(const float* at) { return vld1q_f32(at); }
inline void store(float* at, Floats x) { vst1q_f32(at, x); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats subtract(Floats a, Floats b) { return vsubq_f32(a, b); }
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats divide(Floats a, Floats b) { return vdivq_f32(a, b); }
// a * b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
// NaN where either is.
inline Floats greater(Floats a, Floats b) { return vmaxq_f32(a, b); }
inline Floats lesser(Floats a, Floats b) { return vminq_f32(a, b); }
inline Floats nearest(Floats a) { return vrndnq_f32(a); }
// x * 2^n for whole n that leave it a normal number.
inline Floats scaled(Floats x, Floats n) {
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
inline Floats load_half(const uint16_t* at) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }
inline Floats load_brain(const uint16_t* at) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at), 16)); }

#endif

inline float sum(Floats x) {
    alignas(64) float lanes[LANES];
    store(lanes, x);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

// The first `count` numbers at `at`, then zeros.
inline Floats load_some(const float* at, int64_t count) {
    alignas(64) float lanes[LANES] = {};
    std::memcpy(lanes, at, sizeof(float) * static_cast<size_t>(count));
    return load(lanes);
}
inline void store_some(float* at, Floats x, int64_t count) {
    alignas(64) float lanes[LANES];
    store(lanes, x);
    std::memcpy(at, lanes, sizeof(float) * static_cast<size_t>(count));
}

// e^x to two units in the last place between -86.9 and 88, at these ends' values beyond them; NaN of NaN.
// The polynomial is that of Moshier's Cephes library.
inline Floats exponential(Floats x) {
    x = greater(all(-86.9f), lesser(all(88.0f), x));
    const Floats n = nearest(multiply(x, all(1.44269504f)));
    // ln 2 in two parts (Cody and Waite), the first with few digits, so that its products are exact.
    Floats r = fused(n, all(-0.693359375f), x);
    r = fused(n, all(2.12194440e-4f), r);
    Floats p = all(1.9875691500e-4f);
    p = fused(p, r, all(1.3981999507e-3f));
    p = fused(p, r, all(8.3334519073e-3f));
    p = fused(p, r, all(4.1665795894e-2f));
    p = fused(p, r, all(1.6666665459e-1f));
    p = fused(p, r, all(5.0000001201e-1f));
    return scaled(add(fused(multiply(r, r), p, r), all(1.0f)), n);
}

// Of the same accuracy times 3; NaN of NaN.
inline Floats hyperbolic_tangent(Floats x) {
    const Floats twice = exponential(multiply(all(2.0f), x));
    return subtract(all(1.0f), divide(all(2.0f), add(twice, all(1.0f))));
}

// LANES vectors as a square, its rows made columns.
#if defined(__AVX2__)
inline void transpose_eight(__m256* r) {
    __m256 t[8];
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    __m256 u[8];
    for (int i = 0; i < 2; ++i) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
#endif

inline void transpose(Floats* square) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
    __m256 left[16], right[16];
    for (int i = 0; i < 16; ++i) {
        left[i] = _mm512_castps512_ps256(square[i]);
        right[i] = _mm512_extractf32x8_ps(square[i], 1);
    }
    transpose_eight(left), transpose_eight(left + 8), transpose_eight(right), transpose_eight(right + 8);
    for (int i = 0; i < 8; ++i) {
        square[i] = _mm512_insertf32x8(_mm512_castps256_ps512(left[i]), left[i + 8], 1);
        square[i + 8] = _mm512_insertf32x8(_mm512_castps256_ps512(right[i]), right[i + 8], 1);
    }
#elif defined(__AVX2__)
    transpose_eight(square);
#else
    alignas(64) float rows[LANES][LANES];
    for (int i = 0; i < LANES; ++i) store(rows[i], square[i]);
    for (int i = 0; i < LANES; ++i) for (int j = 0; j < i; ++j) std::swap(rows[i][j], rows[j][i]);
    for (int i = 0; i < LANES; ++i) square[i] = load(rows[i]);
#endif
}

// Rounded to the nearest, halfway to even.
inline uint16_t half_of(float x) {
#if defined(__F16C__)
    return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
    const __fp16 narrow = static_cast<__fp16>(x);
    uint16_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    return bits;
#endif
}
inline uint16_t brain_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace asyncpage
