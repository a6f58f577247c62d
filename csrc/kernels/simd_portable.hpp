// Eight float lanes in plain C++: the vocabulary of the shared kernels where no ISA is assumed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/half.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {
namespace {

struct SimdPortable {
  struct V {
    float lane[8];
  };
  static constexpr int width = 8;
  static constexpr int rows = 4;   // query or activation rows that a micro-kernel holds at once

  template <class F>
  static inline V each(F f) {
    V out;
    for (int i = 0; i < 8; ++i) out.lane[i] = f(i);
    return out;
  }
  static inline V set1(float x) {
    return each([&](int) { return x; });
  }
  static inline V load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static inline void store(float* p, V v) {
    for (int i = 0; i < 8; ++i) p[i] = v.lane[i];
  }
  static inline V load_f16(const std::uint16_t* p) {
    return each([&](int i) { return float_of_half(p[i]); });
  }
  static inline V load_bf16(const std::uint16_t* p) {
    return each([&](int i) { return float_of_bfloat16(p[i]); });
  }
  static inline V load_i8(const std::int8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
  }
  static inline void store_i8(std::int8_t* p, V v) {   // rounded; they fit
    const V whole = round(v);
    for (int i = 0; i < 8; ++i) p[i] = static_cast<std::int8_t>(whole.lane[i]);
  }
  static inline void store_f16(std::uint16_t* p, V v) {
    for (int i = 0; i < 8; ++i) p[i] = half_of_float(v.lane[i]);
  }
  static inline V add(V a, V b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static inline V sub(V a, V b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static inline V mul(V a, V b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static inline V div(V a, V b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // Without the instruction a fused multiply-add is a library call: round twice instead.
  static inline V fma(V a, V b, V c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  // Where either is NaN, max and min return `b`.
  static inline V max(V a, V b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static inline V min(V a, V b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static inline V abs(V a) {
    return each([&](int i) { return a.lane[i] < 0 ? -a.lane[i] : a.lane[i]; });
  }
  static inline V round(V a) {   // |a| < 2^22: adding 1.5 * 2^23 drops the fraction, to even
    return each([&](int i) {
      volatile float shifted = a.lane[i] + 12582912.0f;
      return shifted - 12582912.0f;
    });
  }
  // a * 2^n by the exponent's bits, of normal numbers: n is in the low bits of `shifted`, 1.5 * 2^23 + n.
  static inline V scale_by_power(V a, V shifted) {
    return each([&](int i) {
      std::uint32_t bits, power;
      std::memcpy(&bits, &a.lane[i], 4);
      std::memcpy(&power, &shifted.lane[i], 4);
      bits += power << 23;
      float out;
      std::memcpy(&out, &bits, 4);
      return out;
    });
  }
  // Pairs of neighbours (x, y), each turned by an angle: x c - y s, then x s + y c.
  static inline V turn_pairs(V a, const float* cosine, const float* sine) {
    return each([&](int i) {
      const float c = cosine[i / 2], s = sine[i / 2];
      return i % 2 == 0 ? a.lane[i] * c - a.lane[i + 1] * s : a.lane[i - 1] * s + a.lane[i] * c;
    });
  }
  static inline float reduce_add(V a) {
    return ((a.lane[0] + a.lane[4]) + (a.lane[2] + a.lane[6])) +
           ((a.lane[1] + a.lane[5]) + (a.lane[3] + a.lane[7]));
  }
  static inline float reduce_max(V a) {
    float out = a.lane[0];
    for (int i = 1; i < 8; ++i) out = a.lane[i] > out ? a.lane[i] : out;
    return out;
  }
  static inline double reduce_add_double(V a) {
    double out = 0;
    for (int i = 0; i < 8; ++i) out += a.lane[i];
    return out;
  }
  // The largest magnitude of 32 floats; infinity or NaN if one of them is not finite.
  static inline float group_peak(const float* x) {
    std::uint32_t largest = 0;   // as bits: NaN is above infinity, which is above the others
    for (int i = 0; i < group_values; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      bits &= 0x7FFFFFFFu;
      largest = bits > largest ? bits : largest;
    }
    float out;
    std::memcpy(&out, &largest, 4);
    return out;
  }
  static inline int rounded(float x) {
    volatile float shifted = x + 12582912.0f;
    return static_cast<int>(shifted - 12582912.0f);
  }
  // Rounds 32 floats times `inverse` to int16, in stored order; the sums of both halves.
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int16_t* out) {
    std::int32_t sums[2] = {};
    for (int i = 0; i < group_values; ++i) {
      const int whole = rounded(x[i] * inverse);
      out[stored_position(i)] = static_cast<std::int16_t>(whole);
      sums[i / (group_values / 2)] += whole;
    }
    return {sums[0], sums[1]};
  }
  // The same to int8, in order.
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int8_t* out) {
    std::int32_t sums[2] = {};
    for (int i = 0; i < group_values; ++i) {
      const int whole = rounded(x[i] * inverse);
      out[i] = static_cast<std::int8_t>(whole);
      sums[i / (group_values / 2)] += whole;
    }
    return {sums[0], sums[1]};
  }
  // The same as fours.
  static inline std::pair<std::int32_t, std::int32_t> quantize_fours(const float* x, float inverse,
                                                                     ScaledFours& out) {
    std::int32_t sums[2] = {};
    for (int four = 0; four < group_values / 4; ++four) {
      int whole[4], positive = 0, negative = 0;
      for (int i = 0; i < 4; ++i) {
        whole[i] = rounded(x[four * 4 + i] * inverse);
        (whole[i] > 0 ? positive : negative) += std::abs(whole[i]);
      }
      const float bound = static_cast<float>(std::max(positive, negative));
      const float multiplier = std::max(std::ceil(bound / four_peak), 1.0f);
      const float share = 1.0f / multiplier;
      out.multipliers[four] = static_cast<std::int16_t>(multiplier);
      for (int i = 0; i < 4; ++i) {
        const int byte = rounded(static_cast<float>(whole[i]) * share);
        out.bytes[position_in_fours(four * 4 + i)] = static_cast<std::int8_t>(byte);
        sums[four / 4] += byte * out.multipliers[four];
      }
    }
    return {sums[0], sums[1]};
  }
};

}  // namespace
}  // namespace headrace
