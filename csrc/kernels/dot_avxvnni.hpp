// How sums of products grow with AVX-VNNI: products of neighbours and their addition by one instruction.
#pragma once

#include "kernels/dot_avx2.hpp"

namespace headrace {
namespace {

// DotAvx2's vocabulary.
struct DotAvxVnni {
  static constexpr const char* name = "avx-vnni";

  // From a second register block on it pays to unpack once: what unpacking and scales take of the two
  // pipes that multiply, products have; later where codes take of it too. Where each half of a group has
  // its own scale, keeping both halves' sums takes that back but for many rows.
  static constexpr Blocking blocking(WeightType type, int activation_bits) {
    if (scale_parts(type) == 1) return {6, 1, 6, 7};
    if (weight_bits(type) == 8) return {6, 1, 6, 12};
    return {6, 1, 6, activation_bits == 16 ? 24 : 32};
  }

  [[gnu::always_inline]] static inline void add(const __m256i (&weights)[2],
                                                const std::int16_t* pair, bool first,
                                                __m256i (&sums)[2]) {
    const __m256i inputs = broadcast(pair);
    for (int h = 0; h < 2; ++h)
      sums[h] = first ? _mm256_madd_epi16(weights[h], inputs)
                      : _mm256_dpwssd_avx_epi32(sums[h], weights[h], inputs);
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  // In 32 bits, unlike DotAvx2.
  [[gnu::always_inline]] static inline void add(const __m256i (&weights)[2],
                                                const std::int8_t* four, bool first,
                                                __m256i (&sums)[2]) {
    const __m256i inputs = broadcast(four);
    for (int h = 0; h < 2; ++h) {
      if (first) sums[h] = _mm256_setzero_si256();
      sums[h] = _mm256_dpbusd_avx_epi32(sums[h], weights[h], inputs);
    }
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  [[gnu::always_inline]] static inline void add_fours(const __m256i (&even)[2], const __m256i (&odd)[2],
                                                      const std::int8_t* x,
                                                      const std::int16_t* multipliers,
                                                      __m256i (&sums)[2]) {
    __m256i products[2];
    const __m256i even_inputs = broadcast(x);
    for (int h = 0; h < 2; ++h) products[h] = _mm256_maddubs_epi16(even[h], even_inputs);
    const __m256i odd_inputs = broadcast(x + 4);
    for (int h = 0; h < 2; ++h)
      products[h] = _mm256_add_epi16(products[h], _mm256_maddubs_epi16(odd[h], odd_inputs));
    const __m256i factors = broadcast(multipliers);
    for (int h = 0; h < 2; ++h) sums[h] = _mm256_dpwssd_avx_epi32(sums[h], products[h], factors);
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  static inline __m256i join(__m256i sum) { return sum; }
};

}  // namespace
}  // namespace headrace
