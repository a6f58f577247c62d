// Sixteen float lanes with AVX-512 F, BW, DQ and VL; same vocabulary as simd_portable.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd_avx2.hpp"

namespace headrace {
namespace {

struct SimdAvx512 {
  using V = __m512;
  static constexpr int width = 16;
  static constexpr int rows = 8;

  static inline V set1(float x) { return _mm512_set1_ps(x); }
  static inline V load(const float* p) { return _mm512_loadu_ps(p); }
  static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static inline V load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static inline V load_bf16(const std::uint16_t* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static inline V load_i8(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static inline void store_i8(std::int8_t* p, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  static inline void store_f16(std::uint16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
  static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
  static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline V max(V a, V b) { return _mm512_max_ps(a, b); }
  static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
  static inline V abs(V a) { return _mm512_abs_ps(a); }
  static inline V scale_by_power(V a, V shifted) {
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power));
  }
  static inline V twice_each(const float* p) {
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static inline V turn_pairs(V a, const float* cosine, const float* sine) {
    const V straight = mul(a, twice_each(cosine));
    const V crossed = mul(_mm512_permute_ps(a, 0xB1), twice_each(sine));
    return _mm512_mask_sub_ps(add(straight, crossed), 0x5555, straight, crossed);
  }
  static inline float reduce_add(V a) {
    return SimdAvx2::reduce_add(
        _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
  }
  static inline float reduce_max(V a) {
    return SimdAvx2::reduce_max(
        _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
  }
  static inline double reduce_add_double(V a) {
    return SimdAvx2::reduce_add_double(_mm512_castps512_ps256(a)) +
           SimdAvx2::reduce_add_double(_mm512_extractf32x8_ps(a, 1));
  }
  static inline float group_peak(const float* x) { return SimdAvx2::group_peak(x); }
  template <class Integer>
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     Integer* out) {
    return SimdAvx2::quantize_group(x, inverse, out);
  }
};

}  // namespace
}  // namespace headrace
