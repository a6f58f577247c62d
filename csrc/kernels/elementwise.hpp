// Norm, quantization, activation, rotation and softmax pieces, written once over a Simd vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernel_table.hpp"

namespace headrace {
namespace {

// e^x within 2 units in the last place; 0 gives exactly 1, below -87 about 1e-38, NaN stays NaN.
template <class S>
inline typename S::V exponential(typename S::V x) {
  x = S::min(S::set1(88.0f), S::max(S::set1(-87.0f), x));
  const auto whole = S::round(S::mul(x, S::set1(1.44269504f)));
  auto rest = S::fma(whole, S::set1(-0.693145752f), x);   // ln 2 in two parts, so that the
  rest = S::fma(whole, S::set1(-1.42860677e-6f), rest);   // first product is exact
  auto series = S::set1(1.0f / 5040);                     // Taylor: |rest| < 0.35
  series = S::fma(series, rest, S::set1(1.0f / 720));
  series = S::fma(series, rest, S::set1(1.0f / 120));
  series = S::fma(series, rest, S::set1(1.0f / 24));
  series = S::fma(series, rest, S::set1(1.0f / 6));
  series = S::fma(series, rest, S::set1(0.5f));
  series = S::fma(series, rest, S::set1(1.0f));
  series = S::fma(series, rest, S::set1(1.0f));
  return S::mul(series, S::pow2(whole));
}

template <class S>
inline float exponential_of(float x) {
  float lanes[S::width];
  S::store(lanes, exponential<S>(S::set1(x)));
  return lanes[0];
}

template <class S>
void rms_norm(const float* row, const float* weight, int count, float epsilon, float* out) {
  auto squares = S::set1(0.0f);
  int i = 0;
  for (; i + S::width <= count; i += S::width) {
    const auto x = S::load(row + i);
    squares = S::fma(x, x, squares);
  }
  float sum = S::reduce_add(squares);
  for (; i < count; ++i) sum += row[i] * row[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(count) + epsilon);
  const auto factors = S::set1(factor);
  for (i = 0; i + S::width <= count; i += S::width) {
    S::store(out + i, S::mul(S::mul(S::load(row + i), factors), S::load(weight + i)));
  }
  for (; i < count; ++i) out[i] = row[i] * factor * weight[i];
}

// A group whose values are not all finite (`scale` says which), or all tiny (0).
inline void quantize_unusable(float scale, std::int16_t* values, GroupScale& out) {
  const std::int16_t filler = scale == 0.0f ? 0 : 1;
  for (int i = 0; i < group_values; ++i) values[i] = filler;
  const std::int32_t sum = filler * group_values;
  out = {scale, scale * static_cast<float>(sum), sum, sum / 2, 0, 0};
}

template <class S>
void quantize(const float* row, int count, const QuantizedRow& out) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (int g = 0; g < count / group_values; ++g, row += group_values) {
    std::int16_t* values = out.values + g * group_values;
    auto largest = S::set1(0.0f);
    bool nan = false;
    for (int i = 0; i < group_values; i += S::width) {
      const auto x = S::load(row + i);
      nan |= S::any_nan(x);
      largest = S::max(S::abs(x), largest);
    }
    const float peak = S::reduce_max(largest);
    if (nan || peak < 1e-30f || peak == infinity) {
      const float scale = nan ? std::numeric_limits<float>::quiet_NaN() : peak;
      quantize_unusable(peak < 1e-30f && !nan ? 0.0f : scale, values, out.scales[g]);
      continue;
    }
    const float scale = peak / quantized_peak;
    const auto [first_sum, second_sum] = S::quantize_group(row, quantized_peak / peak, values);
    const std::int32_t sum = first_sum + second_sum;
    out.scales[g] = {scale, scale * static_cast<float>(sum), sum, first_sum, 0, 0};
  }
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

// Groups of 32 as bytes, in order.
template <class S>
void quantize_bytes(const float* row, int count, std::int8_t* out, GroupScale* scales) {
  for (int g = 0; g < count / group_values; ++g, row += group_values, out += group_values) {
    const float scale = to_bytes<S>(row, group_values, out);
    const std::int32_t first = S::sum_sixteen(out);
    const std::int32_t sum = first + S::sum_sixteen(out + group_values / 2);
    scales[g] = {scale, scale * static_cast<float>(sum), sum, first, 0, 0};
  }
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
  const int stride = table.adjacent ? 2 : 1;
  const int partner = table.adjacent ? 1 : table.pairs;
  for (int pair = 0; pair < table.pairs; ++pair) {
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
  auto largest = S::set1(-std::numeric_limits<float>::infinity());
  auto poison = S::set1(0.0f);   // x - x is 0 for a finite x and NaN otherwise
  int i = 0;
  for (; i + S::width <= count; i += S::width) {
    const auto x = S::load(row + i);
    largest = S::max(x, largest);
    poison = S::add(poison, S::sub(x, x));
  }
  float out = S::reduce_max(largest);
  float stain = S::reduce_add(poison);
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
