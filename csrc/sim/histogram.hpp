// Percentiles of millions of times in a few kilobytes: sim/fleet/histogram.py, to the bit.
#pragma once

#include <vector>

namespace headrace {

class Histogram {
 public:
  // Counts a value, as if it came `weight` times.
  void add(double value_s, double weight);

  double weight() const { return weight_; }
  double mean() const { return weight_ ? sum_ / weight_ : 0.0; }

  // The value that `percent` of the weight does not exceed, to 1%; 0 of nothing.
  double percentile(double percent) const;

 private:
  std::vector<double> buckets_;  // weights, from the least value on
  double weight_ = 0.0;
  double sum_ = 0.0;
  double max_ = 0.0;
};

}  // namespace headrace
