#include "sim/histogram.hpp"

#include <algorithm>
#include <cmath>

namespace headrace {

namespace {

constexpr double growth = 1.01;
constexpr double value_s_min = 1e-6;
constexpr double value_s_max = 1e9;  // beyond it all are one; no simulation is as long
const double log_growth = std::log(growth);

int bucket_of(double value_s) {
  return static_cast<int>(std::ceil(std::log(value_s) / log_growth));
}

const int bucket_min = bucket_of(value_s_min);

}  // namespace

void Histogram::add(double value_s, double weight) {
  const int bucket =
      value_s > value_s_min ? bucket_of(std::min(value_s, value_s_max)) : bucket_min;
  const auto place = static_cast<std::size_t>(bucket - bucket_min);
  if (place >= buckets_.size()) buckets_.resize(place + 1);
  buckets_[place] += weight;
  weight_ += weight;
  sum_ += value_s * weight;
  max_ = std::max(max_, value_s);
}

double Histogram::percentile(double percent) const {
  double left = weight_ * percent / 100;
  for (std::size_t place = 0; place < buckets_.size(); ++place) {
    if (buckets_[place] == 0.0) continue;
    left -= buckets_[place];
    if (left <= 0)
      return std::min(max_, std::exp((static_cast<int>(place) + bucket_min) * log_growth));
  }
  return max_;
}

}  // namespace headrace
