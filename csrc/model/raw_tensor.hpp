// A tensor as it lies in a model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/errors.hpp"

namespace headrace {

struct RawBytes {
  std::shared_ptr<const std::uint8_t> data;
  std::size_t count = 0;
};

struct RawTensor {   // `outputs` rows of `inputs` values
  std::string name;
  int ggml_type = 0;
  int outputs = 0;   // 1 for a vector
  int inputs = 0;
  const std::uint8_t* data = nullptr;
  std::size_t byte_count = 0;
  std::function<RawBytes()> make;   // in place of data: weights that the file stores in another form

  // Its bytes, made here and held as long as the result, if need be; ModelFileError unless they are
  // as many. Who finds the weights packed already never asks.
  RawBytes bytes(std::size_t expected) const {
    RawBytes out = make ? make() : RawBytes{{std::shared_ptr<void>(), data}, byte_count};
    if (out.count != expected)
      throw ModelFileError("tensor " + name + " has " + std::to_string(out.count) +
                           " bytes where its shape needs " + std::to_string(expected));
    return out;
  }
};

}  // namespace headrace
