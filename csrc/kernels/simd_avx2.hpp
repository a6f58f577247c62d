// Eight float lanes with AVX2, FMA and F16C; same vocabulary as simd_portable.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

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
  static inline V load_i8(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static inline void store_i8(std::int8_t* p, V v) {   // rounded; they fit
    const __m256i whole = _mm256_cvtps_epi32(v);
    const __m128i shorts =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(shorts, shorts));
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
  static inline V scale_by_power(V a, V shifted) {
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
  }
  static inline V twice_each(const float* p) {   // p[0], p[0], p[1], p[1], ..
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), order);
  }
  static inline V turn_pairs(V a, const float* cosine, const float* sine) {
    const V swapped = _mm256_permute_ps(a, 0xB1);
    return _mm256_addsub_ps(mul(a, twice_each(cosine)), mul(swapped, twice_each(sine)));
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
  static inline std::int32_t sum_of(__m256i a) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
  }
  static inline float group_peak(const float* x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < group_values; i += width)
      largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign, load(x + i))));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
  }
  static inline std::int32_t quantize_half(const float* x, __m256 factor, std::int16_t* out) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(load(x), factor));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 8), factor));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m256i stored = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xD8), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), stored);
    return sum_of(_mm256_add_epi32(a, b));
  }
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int16_t* out) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const std::int32_t first = quantize_half(x, factor, out);
    return {first, quantize_half(x + 16, factor, out + 16)};
  }
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int8_t* out) {
    const __m256 factor = _mm256_set1_ps(inverse);
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + i * width), factor));
    const __m256i fours = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                             _mm256_packs_epi32(whole[2], whole[3]));
    const __m256i bytes =   // packing works within 128 bits
        _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));   // 128 bits a half
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
    return {_mm_cvtsi128_si32(_mm256_castsi256_si128(sums)),
            _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1))};
  }

  // Of two fours, one a half: their multipliers, in all columns of the half. a: 8 integers.
  static inline __m256 multipliers_of(__m256i a) {
    const __m256i positive = _mm256_max_epi32(a, _mm256_setzero_si256());
    __m256i sums = _mm256_hadd_epi32(positive, _mm256_sub_epi32(positive, a));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
    sums = _mm256_max_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
    const __m256 share = div(_mm256_cvtepi32_ps(sums), set1(four_peak));
    return max(_mm256_ceil_ps(share), set1(1.0f));
  }
  // The same of both halves of four such, in the order of inputs.
  static inline __m128i order_multipliers(const __m256i (&of)[4]) {
    const __m256i halves = _mm256_unpacklo_epi64(_mm256_unpacklo_epi32(of[0], of[1]),
                                                 _mm256_unpacklo_epi32(of[2], of[3]));
    const __m128i all =
        _mm_packs_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    return _mm_unpacklo_epi16(all, _mm_srli_si128(all, 8));
  }
  static inline std::pair<std::int32_t, std::int32_t> quantize_fours(const float* x, float inverse,
                                                                     ScaledFours& out) {
    const __m256 factor = set1(inverse);
    __m256i bytes[4], multipliers[4], values[4];
    for (int i = 0; i < 4; ++i) {
      const __m256i whole = _mm256_cvtps_epi32(mul(load(x + i * width), factor));
      const __m256 multiplier = multipliers_of(whole);
      multipliers[i] = _mm256_cvtps_epi32(multiplier);
      bytes[i] = _mm256_cvtps_epi32(mul(_mm256_cvtepi32_ps(whole), div(set1(1.0f), multiplier)));
      values[i] = _mm256_mullo_epi32(bytes[i], multipliers[i]);
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(bytes[0], bytes[1]),
                                              _mm256_packs_epi32(bytes[2], bytes[3]));
    const __m256i in_order =   // packing works within 128 bits
        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m256i positions = _mm256_broadcastsi128_si256(   // position_in_fours
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes), _mm256_shuffle_epi8(in_order, positions));
    _mm_store_si128(reinterpret_cast<__m128i*>(out.multipliers), order_multipliers(multipliers));
    return {sum_of(_mm256_add_epi32(values[0], values[1])), sum_of(_mm256_add_epi32(values[2], values[3]))};
  }
};

}  // namespace
}  // namespace headrace
