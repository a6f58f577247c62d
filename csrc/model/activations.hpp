// The input rows of a matrix product in the forms that its weights want: int8 groups, floats, both.
#pragma once

#include <cstring>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

struct InputForms {
  bool int8 = false;
  bool floats = false;

  void add(WeightType type) { (is_quantized(type) ? int8 : floats) = true; }
};

class Activations {
 public:
  Activations(int rows_max, int inputs, InputForms forms)
      : inputs_(inputs),
        groups_(inputs / group_values),
        stride_(round_up(static_cast<std::size_t>(inputs), group_values)),
        forms_(forms),
        values_(forms.int8 ? static_cast<std::size_t>(rows_max) * inputs : 0),
        flag_stride_(round_up(static_cast<std::size_t>(groups_), 32)),
        scales_(forms.int8 ? static_cast<std::size_t>(rows_max) * groups_ : 0),
        outliers_(forms.int8 ? static_cast<std::size_t>(rows_max) * groups_ : 0),
        outlier_flags_(forms.int8 ? static_cast<std::size_t>(rows_max) * flag_stride_ : 0),
        floats_(forms.floats ? static_cast<std::size_t>(rows_max) * stride_ : 0) {}

  const InputForms& forms() const { return forms_; }

  ActivationRows view() const {
    return {values_.data(), scales_.data(),  outliers_.data(), outlier_flags_.data(),
            flag_stride_,   floats_.data(), stride_,          inputs_};
  }

  // Sets inputs [offset, offset + count) of a row; in int8 both must be multiples of 32.
  void set(const KernelTable& kernels, int row, int offset, const float* source, int count) {
    const std::size_t r = static_cast<std::size_t>(row);
    if (forms_.floats)
      std::memcpy(floats_.data() + r * stride_ + offset, source,
                  static_cast<std::size_t>(count) * sizeof(float));
    if (forms_.int8)
      kernels.quantize(source, count, quantized(r, static_cast<std::size_t>(offset)));
  }

 private:
  QuantizedRow quantized(std::size_t row, std::size_t offset) {
    const std::size_t group = offset / group_values;
    return {values_.data() + row * inputs_ + offset, scales_.data() + row * groups_ + group,
            outliers_.data() + row * groups_ + group,
            outlier_flags_.data() + row * flag_stride_ + group};
  }

  int inputs_;
  int groups_;
  std::size_t stride_;
  InputForms forms_;
  Buffer<std::int8_t> values_;
  std::size_t flag_stride_;
  Buffer<GroupScale> scales_;
  Buffer<Outlier> outliers_;
  Buffer<std::uint8_t> outlier_flags_;
  Buffer<float> floats_;
};

}  // namespace headrace
