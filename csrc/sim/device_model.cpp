#include "sim/device_model.hpp"

#include <algorithm>

namespace headrace {

double DeviceModel::step_s(std::int64_t rows, std::int64_t sequences, double context_tokens,
                           double pairs) const {
  const double matrices_s = matrix_points.empty()
                                ? std::max(weights_s, static_cast<double>(rows) * row_s)
                                : between_points(rows);
  return fixed_s + matrices_s + static_cast<double>(sequences) * sequence_s +
         context_tokens * context_token_s + pairs * pair_s;
}

double DeviceModel::between_points(std::int64_t rows) const {
  const auto found = std::lower_bound(matrix_points.begin(), matrix_points.end(),
                                      std::pair<std::int64_t, double>(rows, 0.0));
  const auto last = static_cast<std::ptrdiff_t>(matrix_points.size()) - 1;
  const auto after = std::min(last, std::max<std::ptrdiff_t>(1, found - matrix_points.begin()));
  const auto [low, low_s] = matrix_points[static_cast<std::size_t>(after - 1)];
  const auto [high, high_s] = matrix_points[static_cast<std::size_t>(after)];
  return low_s +
         (high_s - low_s) * static_cast<double>(rows - low) / static_cast<double>(high - low);
}

DeviceModel DeviceModel::slowed(double factor) const {
  DeviceModel slower = *this;
  slower.fixed_s *= factor;
  slower.weights_s *= factor;
  slower.row_s *= factor;
  for (auto& point : slower.matrix_points) point.second *= factor;
  slower.sequence_s *= factor;
  slower.context_token_s *= factor;
  slower.pair_s *= factor;
  return slower;
}

}  // namespace headrace
