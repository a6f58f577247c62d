// Norm, quantization, activation, rotation and softmax pieces, written once over a Simd vocabulary.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernel_table.hpp"

namespace headrace {
namespace {

// e^x within 2 units in the last place; 0 gives exactly 1, below -87 about 1e-38. NaN stays NaN if its low
// 9 bits are 0, as of any that arithmetic makes or 16 bits hold; floats in files are looked at as they load.
template <class S>
inline typename S::V exponential(typename S::V x) {
  const auto magic = S::set1(12582912.0f);   // 1.5 * 2^23: a sum with it is rounded to whole numbers
  x = S::min(S::set1(88.0f), S::max(S::set1(-87.0f), x));
  const auto shifted = S::fma(x, S::set1(1.44269504f), magic);
  const auto whole = S::sub(shifted, magic);
  auto rest = S::fma(whole, S::set1(-0.693145752f), x);   // ln 2 in two parts, so that the
  rest = S::fma(whole, S::set1(-1.42860677e-6f), rest);   // first product is exact
  auto series = S::set1(0.00138436059f);                  // the least relative error, 2e-9, for
  series = S::fma(series, rest, S::set1(0.00837419637f));   // |rest| < 0.347
  series = S::fma(series, rest, S::set1(0.0416680048f));
  series = S::fma(series, rest, S::set1(0.166664308f));
  series = S::fma(series, rest, S::set1(0.499999942f));
  series = S::fma(series, rest, S::set1(1.00000003f));
  series = S::fma(series, rest, S::set1(1.0f));
  return S::scale_by_power(series, shifted);
}

template <class S>
inline float exponential_of(float x) {
  float lanes[S::width];
  S::store(lanes, exponential<S>(S::set1(x)));
  return lanes[0];
}

constexpr int norm_chains = 4;   // sums at once, since each addition waits for the one before it

template <class S>
void rms_norm(const float* row, const float* weight, int count, float epsilon, float* out) {
  typename S::V squares[norm_chains];
  for (auto& partial : squares) partial = S::set1(0.0f);
  int i = 0;
  for (; i + norm_chains * S::width <= count; i += norm_chains * S::width)
    for (int chain = 0; chain < norm_chains; ++chain) {
      const auto x = S::load(row + i + chain * S::width);
      squares[chain] = S::fma(x, x, squares[chain]);
    }
  for (; i + S::width <= count; i += S::width) {
    const auto x = S::load(row + i);
    squares[0] = S::fma(x, x, squares[0]);
  }
  float sum = S::reduce_add(S::add(S::add(squares[0], squares[1]), S::add(squares[2], squares[3])));
  for (; i < count; ++i) sum += row[i] * row[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(count) + epsilon);
  const auto factors = S::set1(factor);
  for (i = 0; i + S::width <= count; i += S::width) {
    S::store(out + i, S::mul(S::mul(S::load(row + i), factors), S::load(weight + i)));
  }
  for (; i < count; ++i) out[i] = row[i] * factor * weight[i];
}

// A group of equal values: zeros, or ones where the scale is no number.
inline void quantize_equal(std::int16_t value, float scale, std::int16_t* values, GroupScale& out) {
  for (int i = 0; i < group_values; ++i) values[i] = value;
  out = group_scale(scale, value * group_values / 2, value * group_values / 2);
}

// The least power of two that is not below x, a normal number.
inline float power_from(float x) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x007FFFFFu) & 0x7F800000u);
}

// Whether all scales are at most 1.
template <class S>
bool quantize(const float* row, int count, const QuantizedRow& out) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bool shifts = true;
  for (int g = 0; g < count / group_values; ++g, row += group_values) {
    std::int16_t* values = out.values + g * group_values;
    const float peak = S::group_peak(row);
    if (peak < quantized_least) {
      quantize_equal(0, 1.0f, values, out.scales[g]);
    } else if (!(peak < infinity)) {
      quantize_equal(1, peak, values, out.scales[g]);
    } else {
      const float scale = power_from(peak / quantized_peak);
      const auto [first_sum, second_sum] = S::quantize_group(row, 1.0f / scale, values);
      out.scales[g] = group_scale(scale, first_sum, second_sum);
    }
    shifts &= out.scales[g].scale <= 1.0f;
  }
  return shifts;
}

// Groups of 32 as bytes, in order; one that is not finite gets a scale that is not.
template <class S>
void quantize_bytes(const float* row, int count, std::int8_t* out, GroupScale* scales) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (int g = 0; g < count / group_values; ++g, row += group_values, out += group_values) {
    const float peak = S::group_peak(row);
    if (!(peak >= 1e-30f && peak < infinity)) {
      std::fill_n(out, group_values, std::int8_t{0});
      const float scale = peak < 1e-30f ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      scales[g] = {scale, scale, 0, 0, 0, 0, 0};
      continue;
    }
    const float scale = peak / byte_peak;
    const auto [first_sum, second_sum] = S::quantize_group(row, byte_peak / peak, out);
    scales[g] = group_scale(scale, first_sum, second_sum);
  }
}

// Groups of 32 as fours, scaled as 16 bits are (`quantize`); of one that is not finite the scale is none.
template <class S>
bool quantize_fours(const float* row, int count, ScaledFours* out) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bool shifts = true;
  for (int g = 0; g < count / group_values; ++g, row += group_values) {
    ScaledFours& fours = out[g];
    const float peak = S::group_peak(row);
    if (!(peak >= quantized_least && peak < infinity)) {
      const bool zeros = peak < quantized_least;
      fours = {};
      fours.scale = zeros ? 1.0f : std::numeric_limits<float>::quiet_NaN();
      fours.scaled_sum = zeros ? 0.0f : fours.scale;
      shifts &= zeros;
      continue;
    }
    fours.scale = power_from(peak / quantized_peak);
    const auto [first_sum, second_sum] = S::quantize_fours(row, 1.0f / fours.scale, fours);
    fours.scaled_sum = fours.scale * static_cast<float>(first_sum + second_sum);
    fours.start = -four_weight_offset * (first_sum + second_sum);
    fours.second_start = -four_weight_offset * second_sum;
    shifts &= fours.scale <= 1.0f;
  }
  return shifts;
}

// Symmetric int8 of a whole row; a row that is not finite gets a scale that is not.
template <class S>
float to_bytes(const float* row, int count, std::int8_t* out) {
  auto largest = S::set1(0.0f);
  auto poison = S::set1(0.0f);   // x - x is 0 for a finite x and NaN otherwise
  for (int i = 0; i < count; i += S::width) {   // count is a multiple of 16
    const auto x = S::load(row + i);
    largest = S::max(S::abs(x), largest);
    poison = S::add(poison, S::sub(x, x));
  }
  const float peak = S::reduce_max(largest);
  const float stain = S::reduce_add(poison);
  if (!(peak >= 1e-30f && stain == 0.0f)) {
    std::fill_n(out, count, std::int8_t{0});
    return stain;
  }
  const auto factor = S::set1(byte_peak / peak);
  for (int i = 0; i < count; i += S::width)
    S::store_i8(out + i, S::mul(S::load(row + i), factor));
  return peak / byte_peak;
}

template <class S>
void swiglu(const float* gate, const float* up, int count, float* out) {
  const auto one = S::set1(1.0f);
  for (int i = 0; i < count; i += S::width) {   // count is a multiple of 16
    const auto g = S::load(gate + i);
    const auto denominator = S::add(one, exponential<S>(S::sub(S::set1(0.0f), g)));
    S::store(out + i, S::mul(S::div(g, denominator), S::load(up + i)));
  }
}

template <class S>
void rotate(float* head, const RopeTable& table, int position, float scale) {
  const std::size_t offset = static_cast<std::size_t>(position) * table.pairs;
  const float* cosine = table.cosine + offset;
  const float* sine = table.sine + offset;
  const auto factor = S::set1(scale);
  int pair = 0;
  if (table.adjacent) {
    for (; pair + S::width / 2 <= table.pairs; pair += S::width / 2) {
      float* at = head + 2 * pair;
      S::store(at, S::mul(S::turn_pairs(S::load(at), cosine + pair, sine + pair), factor));
    }
  } else {
    for (; pair + S::width <= table.pairs; pair += S::width) {
      const auto x = S::load(head + pair);
      const auto y = S::load(head + table.pairs + pair);
      const auto c = S::load(cosine + pair);
      const auto s = S::load(sine + pair);
      S::store(head + pair, S::mul(S::sub(S::mul(x, c), S::mul(y, s)), factor));
      S::store(head + table.pairs + pair, S::mul(S::add(S::mul(x, s), S::mul(y, c)), factor));
    }
  }
  const int stride = table.adjacent ? 2 : 1;
  const int partner = table.adjacent ? 1 : table.pairs;
  for (; pair < table.pairs; ++pair) {
    float& x = head[pair * stride];
    float& y = head[pair * stride + partner];
    const float turned = x * cosine[pair] - y * sine[pair];
    y = (x * sine[pair] + y * cosine[pair]) * scale;
    x = turned * scale;
  }
}

template <class S>
void to_half(const float* row, int count, std::uint16_t* out) {
  const auto limit = S::set1(65504.0f);
  for (int i = 0; i < count; i += S::width) {   // count is a multiple of 16
    const auto x = S::min(limit, S::max(S::set1(-65504.0f), S::load(row + i)));
    S::store_f16(out + i, x);
  }
}

template <class S>
float peak(const float* row, int count) {
  constexpr int chains = 4;   // since each step of one waits for the one before it
  typename S::V largest[chains];
  typename S::V poison[chains];   // x - x is 0 for a finite x and NaN otherwise
  for (auto& chain : largest) chain = S::set1(-std::numeric_limits<float>::infinity());
  for (auto& chain : poison) chain = S::set1(0.0f);
  const auto take = [&](int i, int c) {
    const auto x = S::load(row + i);
    largest[c] = S::max(x, largest[c]);
    poison[c] = S::add(poison[c], S::sub(x, x));
  };
  int i = 0;
  for (; i + chains * S::width <= count; i += chains * S::width)
    for (int c = 0; c < chains; ++c) take(i + c * S::width, c);
  for (; i + S::width <= count; i += S::width) take(i, 0);
  float out = S::reduce_max(S::max(S::max(largest[0], largest[1]), S::max(largest[2], largest[3])));
  float stain = S::reduce_add(S::add(S::add(poison[0], poison[1]), S::add(poison[2], poison[3])));
  for (; i < count; ++i) {
    out = row[i] > out ? row[i] : out;
    stain += row[i] - row[i];
  }
  return out + stain;
}

template <class S>
double exponentials(const float* row, int count, float peak, float scale, float* out) {
  const auto shift = S::set1(peak);
  const auto factor = S::set1(scale);
  double sum = 0;
  int i = 0;
  while (i + S::width <= count) {   // short float sums, widened before they lose digits
    auto partial = S::set1(0.0f);
    for (int end = i + 8 * S::width; i < end && i + S::width <= count; i += S::width) {
      const auto e = exponential<S>(S::mul(S::sub(S::load(row + i), shift), factor));
      if (out != nullptr) S::store(out + i, e);
      partial = S::add(partial, e);
    }
    sum += S::reduce_add_double(partial);
  }
  for (; i < count; ++i) {
    const float e = exponential_of<S>((row[i] - peak) * scale);
    if (out != nullptr) out[i] = e;
    sum += e;
  }
  return sum;
}

}  // namespace
}  // namespace headrace
