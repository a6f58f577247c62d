// How sums of products grow with AVX-VNNI: products of neighbours and their addition by one instruction.
#pragma once

#include "kernels/dot_avx2.hpp"

namespace headrace {
namespace {

// DotAvx2's vocabulary.
struct DotAvxVnni {
  static constexpr const char* name = "avx-vnni";

  // Products take the two pipes that multiply, and next to nothing the others: weights are widened there
  // at no cost. What else wants those two does cost: shifts of nibbles to 16 bits, and scales with
  // minimums, which many rows get once.
  static constexpr Blocking blocking(WeightType type, int activation_bits) {
    if (weight_bits(type) == 8) return {6, 1, 0, 0};
    if (activation_bits == 16) return {6, 1, 6, 24};
    return {6, 1, 6, has_minimum(type) ? 32 : 0};
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

  static inline __m256i join(__m256i sum) { return sum; }
};

}  // namespace
}  // namespace headrace
