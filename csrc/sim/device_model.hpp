// How long a device takes for a step: sim/fleet/device.py, which has the formula, to the bit.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace headrace {

struct DeviceModel {
  double fixed_s = 0.0;
  double weights_s = 0.0;
  double row_s = 0.0;
  std::vector<std::pair<std::int64_t, double>> matrix_points;  // rows and seconds
  double sequence_s = 0.0;
  double context_token_s = 0.0;
  double pair_s = 0.0;
  std::int64_t kv_tokens = 0;
  std::int64_t block_size_tokens = 0;
  std::int64_t step_rows = 0;
  std::int64_t sequences_max = 0;
  std::int64_t waiting_max = 0;
  std::int64_t max_model_len = 0;

  double step_s(std::int64_t rows, std::int64_t sequences, double context_tokens,
                double pairs) const;

  // The same device taking `factor` times as long.
  DeviceModel slowed(double factor) const;

 private:
  double between_points(std::int64_t rows) const;
};

}  // namespace headrace
