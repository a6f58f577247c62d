// How sums of products grow with AVX2: products of neighbours by one instruction, their addition by
// another. The seam of the matrix kernels with registers of 256 bits; DotAvxVnni has the same vocabulary.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/tile_layout.hpp"

namespace headrace {
namespace {

// How many rows and groups are taken at once.
struct Blocking {
  int rows;            // of a register block: their sums, two for each, fill the registers
  int kept_groups;     // whose integer sums are kept until the floats have their turn
  int wide_rows;       // of a register block that meets weights unpacked once (matmul_wide_avx2.hpp)
  int wide_rows_min;   // from here on that pays; 0: never
};

inline __m256i broadcast(const std::int16_t* pair) {
  std::int32_t both;
  std::memcpy(&both, pair, 4);
  return _mm256_set1_epi32(both);
}

inline __m256i broadcast(const std::int8_t* four) {
  std::int32_t all;
  std::memcpy(&all, four, 4);
  return _mm256_set1_epi32(all);
}

inline __m256i broadcast(const std::int32_t* one) {
  std::int32_t value;
  std::memcpy(&value, one, 4);
  return _mm256_set1_epi32(value);
}

// Keeps the compiler from gathering many sums' additions at the end, which spills every product.
inline void settle(__m256i& sum) {
#if defined(__GNUC__)
  asm volatile("" : "+x"(sum));
#endif
}

struct DotAvx2 {
  static constexpr const char* name = "avx2";

  // Nibbles take one register more to unpack. With kept integer sums those of floats stay in registers,
  // and multiplications of floats do not come between those of integers; with 8-bit weights, whose
  // unpacking takes the loads that keeping would, it does not pay.
  static constexpr Blocking blocking(WeightType type, int activation_bits) {
    if (activation_bits == 8) return {6, 16, 4, 7};
    return weight_bits(type) == 4 ? Blocking{5, 16, 4, 6} : Blocking{6, 1, 6, 7};
  }

  // sums = (first) or += the products of both halves of the 16 columns with a pair of inputs, in 32 bits.
  [[gnu::always_inline]] static inline void add(const __m256i (&weights)[2],
                                                const std::int16_t* pair, bool first,
                                                __m256i (&sums)[2]) {
    const __m256i inputs = broadcast(pair);
    __m256i products[2];
    for (int h = 0; h < 2; ++h) products[h] = _mm256_madd_epi16(weights[h], inputs);
    for (int h = 0; h < 2; ++h) sums[h] = first ? products[h] : _mm256_add_epi32(sums[h], products[h]);
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  // The same of bytes, weights unsigned, with four inputs: two sums a column, in 16 bits. Those of two
  // products are at most 2 * 15 * 127, so the eight of a group fit.
  [[gnu::always_inline]] static inline void add(const __m256i (&weights)[2],
                                                const std::int8_t* four, bool first,
                                                __m256i (&sums)[2]) {
    const __m256i inputs = broadcast(four);
    __m256i products[2];
    for (int h = 0; h < 2; ++h) products[h] = _mm256_maddubs_epi16(weights[h], inputs);
    for (int h = 0; h < 2; ++h) sums[h] = first ? products[h] : _mm256_add_epi16(sums[h], products[h]);
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  // sums += the products of both halves' weights, unsigned, with 8 inputs of fours: at x the four even ones,
  // then the odd ones, and at `multipliers` those of both fours. Products fit 16 bits, as do the sums of
  // those that share a multiplier.
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
    for (int h = 0; h < 2; ++h)
      sums[h] = _mm256_add_epi32(sums[h], _mm256_madd_epi16(products[h], factors));
    for (int h = 0; h < 2; ++h) settle(sums[h]);
  }

  // A column's sum in 32 bits out of what `add` made of bytes.
  static inline __m256i join(__m256i sum) {
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
};

}  // namespace
}  // namespace headrace
