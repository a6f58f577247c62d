// A tensor as it lies in a model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace {

struct RawTensor {   // `outputs` rows of `inputs` values
  std::string name;
  int ggml_type = 0;
  int outputs = 0;   // 1 for a vector
  int inputs = 0;
  const std::uint8_t* data = nullptr;
  std::size_t byte_count = 0;
};

}  // namespace headrace
