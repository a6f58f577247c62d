// Eight float lanes with AVX2, FMA and F16C; same vocabulary as simd_portable.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/kernel_table.hpp"

namespace headrace {
namespace {

struct SimdAvx2 {
  using V = __m256;
  static constexpr int width = 8;
  static constexpr int rows = 6;

  static inline V set1(float x) { return _mm256_set1_ps(x); }
  static inline V load(const float* p) { return _mm256_loadu_ps(p); }
  static inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static inline V load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline V load_bf16(const std::uint16_t* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static inline void store_f16(std::uint16_t* p, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static inline V add(V a, V b) { return _mm256_add_ps(a, b); }
  static inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static inline V div(V a, V b) { return _mm256_div_ps(a, b); }
  static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline V max(V a, V b) { return _mm256_max_ps(a, b); }
  static inline V min(V a, V b) { return _mm256_min_ps(a, b); }
  static inline V abs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static inline V round(V a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static inline V pow2(V a) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static inline bool any_nan(V a) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
  }
  static inline V lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static inline std::uint32_t equal_mask(V a, V b) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
  }
  static inline V zero_where_equal(V x, V a, V b) {
    return _mm256_and_ps(x, _mm256_cmp_ps(a, b, _CMP_NEQ_OQ));
  }
  static inline V load_bits(const std::uint8_t* p, int shift, int mask) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(mask)));
  }
  static inline std::uint32_t top_bits(const std::uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
  }
  static inline float reduce_add(V a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static inline float reduce_max(V a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static inline double reduce_add_double(V a) {
    const __m256d sum = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                                      _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
  }
  static inline std::int32_t quantize_group(const float* x, float inverse, std::int8_t* out) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(load(x), factor));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 8), factor));
    const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 16), factor));
    const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 24), factor));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(packed, order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
  }
};

}  // namespace
}  // namespace headrace
