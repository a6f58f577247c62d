// Pieces that some model families compute and llama does not: other gates, LayerNorm.
#pragma once

#include "kernels/elementwise.hpp"

namespace headrace {
namespace {

// x times the logistic function of `argument`.
template <class S>
inline typename S::V times_sigmoid(typename S::V x, typename S::V argument) {
  const auto denominator = S::add(S::set1(1.0f), exponential<S>(S::sub(S::set1(0.0f), argument)));
  return S::div(x, denominator);
}

// GELU's tanh form is x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class S>
void geglu_tanh(const float* gate, const float* up, int count, float* out) {
  for (int i = 0; i < count; i += S::width) {   // count is a multiple of 16
    const auto g = S::load(gate + i);
    const auto cubic = S::fma(S::mul(S::mul(g, g), g), S::set1(0.044715f), g);
    const auto activated = times_sigmoid<S>(g, S::mul(cubic, S::set1(1.5957691216f)));
    S::store(out + i, S::mul(activated, S::load(up + i)));
  }
}

// GELU with erf by Abramowitz and Stegun's formula 7.1.26, within 1.5e-7.
template <class S>
void geglu_erf(const float* gate, const float* up, int count, float* out) {
  const auto one = S::set1(1.0f);
  for (int i = 0; i < count; i += S::width) {
    const auto g = S::load(gate + i);
    const auto x = S::mul(S::abs(g), S::set1(0.70710678f));
    const auto t = S::div(one, S::fma(S::set1(0.3275911f), x, one));
    auto series = S::set1(1.061405429f);
    series = S::fma(series, t, S::set1(-1.453152027f));
    series = S::fma(series, t, S::set1(1.421413741f));
    series = S::fma(series, t, S::set1(-0.284496736f));
    series = S::fma(series, t, S::set1(0.254829592f));
    const auto tail = S::mul(S::mul(series, t), exponential<S>(S::sub(S::set1(0.0f), S::mul(x, x))));
    // For both signs g (1 + erf) / 2 is (g + |g|) / 2 - |g| tail / 2.
    const auto size = S::abs(g);
    const auto twice = S::sub(S::add(g, size), S::mul(size, tail));
    S::store(out + i, S::mul(S::mul(twice, S::set1(0.5f)), S::load(up + i)));
  }
}

// gpt-oss: the gate up to 7, the other within 7 and plus 1, a steeper logistic function.
template <class S>
void swiglu_clamped(const float* gate, const float* up, int count, float* out) {
  const auto limit = S::set1(7.0f);
  for (int i = 0; i < count; i += S::width) {
    const auto g = S::min(limit, S::load(gate + i));
    const auto u = S::min(limit, S::max(S::set1(-7.0f), S::load(up + i)));
    const auto activated = times_sigmoid<S>(g, S::mul(g, S::set1(1.702f)));
    S::store(out + i, S::mul(activated, S::add(u, S::set1(1.0f))));
  }
}

template <class S>
void layer_norm(const float* row, const float* weight, const float* bias, int count, float epsilon,
                float* out) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += row[i];
  const float mean = static_cast<float>(sum / count);
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const double distance = static_cast<double>(row[i]) - mean;
    squares += distance * distance;
  }
  const float factor = static_cast<float>(1.0 / std::sqrt(squares / count + epsilon));
  for (int i = 0; i < count; ++i) out[i] = (row[i] - mean) * factor * weight[i] + bias[i];
}

}  // namespace
}  // namespace headrace
