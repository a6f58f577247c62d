// The input rows of a matrix product in the forms that its weights want: int16 groups, int8 groups,
// fours, floats, or several.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/buffer.hpp"
#include "base/rank_group.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {

struct InputForms {
  bool integers = false;   // of 16 bits
  bool bytes = false;
  bool fours = false;
  bool floats = false;

  void add(const KernelTable& kernels, WeightType type) {
    (!is_quantized(type)           ? floats
     : reads_bytes(kernels, type) ? bytes
     : reads_fours(kernels, type) ? fours
                                  : integers) = true;
  }
  void add(const InputForms& more) {
    integers |= more.integers;
    bytes |= more.bytes;
    fours |= more.fours;
    floats |= more.floats;
  }
  bool quantized() const { return integers || has_eight_bits(); }
  bool has_eight_bits() const { return bytes || fours; }
};

class Activations {
 public:
  // With a group its ranks share the rows: each sets its part of the inputs.
  Activations(int rows_max, int inputs, InputForms forms, RankGroup* group = nullptr)
      : inputs_(inputs),
        groups_(inputs / group_values),
        stride_(round_up(static_cast<std::size_t>(inputs), group_values)),
        forms_(forms),
        is_alone_(group == nullptr),
        shifts_(is_alone_),
        values_(shared_buffer<std::int16_t>(
            group, forms.integers ? static_cast<std::size_t>(rows_max) * inputs : 0)),
        scales_(shared_buffer<GroupScale>(
            group, forms.integers ? static_cast<std::size_t>(rows_max) * groups_ : 0)),
        bytes_(shared_buffer<std::int8_t>(
            group, forms.bytes ? static_cast<std::size_t>(rows_max) * inputs : 0)),
        byte_scales_(shared_buffer<GroupScale>(
            group, forms.bytes ? static_cast<std::size_t>(rows_max) * groups_ : 0)),
        fours_(shared_buffer<ScaledFours>(
            group, forms.fours ? static_cast<std::size_t>(rows_max) * groups_ : 0)),
        floats_(shared_buffer<float>(
            group, forms.floats ? static_cast<std::size_t>(rows_max) * stride_ : 0)) {}

  // What they take of a group's memory at most.
  static std::size_t shared_bytes(std::size_t rows_max, int inputs) {
    const std::size_t width = round_up(static_cast<std::size_t>(inputs), group_values);
    return RankGroup::taken_bytes(rows_max * width * sizeof(std::int16_t)) +
           RankGroup::taken_bytes(rows_max * width) +
           2 * RankGroup::taken_bytes(rows_max * (width / group_values) * sizeof(GroupScale)) +
           RankGroup::taken_bytes(rows_max * (width / group_values) * sizeof(ScaledFours)) +
           RankGroup::taken_bytes(rows_max * width * sizeof(float));
  }

  const InputForms& forms() const { return forms_; }

  // Keeps the rows as floats too from now on: an adapter reads them.
  void keep_floats(int rows_max) {
    if (forms_.floats) return;
    forms_.floats = true;
    floats_ = Buffer<float>(static_cast<std::size_t>(rows_max) * stride_);
  }

  ActivationRows view() const {
    return {values_.data(), scales_.data(), floats_.data(), stride_, inputs_, bytes_.data(),
            byte_scales_.data(), shifts_.load(std::memory_order_relaxed), fours_.data()};
  }

  // Before a step sets its rows.
  void begin_step() { shifts_.store(is_alone_, std::memory_order_relaxed); }

  // Sets inputs [offset, offset + count) of a row; quantized, both must be multiples of 32.
  void set(const KernelTable& kernels, int row, int offset, const float* source, int count) {
    const std::size_t r = static_cast<std::size_t>(row);
    if (forms_.floats)
      std::memcpy(floats_.data() + r * stride_ + offset, source,
                  static_cast<std::size_t>(count) * sizeof(float));
    if (forms_.integers &&
        !kernels.quantize(source, count, quantized(r, static_cast<std::size_t>(offset))))
      shifts_.store(false, std::memory_order_relaxed);
    if (forms_.bytes)
      kernels.quantize_bytes(source, count, bytes_.data() + r * inputs_ + offset,
                             byte_scales_.data() + r * groups_ + offset / group_values);
    if (forms_.fours && !kernels.quantize_fours(source, count,
                                                fours_.data() + r * groups_ + offset / group_values))
      shifts_.store(false, std::memory_order_relaxed);
  }

  void move_row(int from, int to) {
    const std::size_t source = static_cast<std::size_t>(from);
    const std::size_t target = static_cast<std::size_t>(to);
    if (forms_.floats)
      std::copy_n(floats_.data() + source * stride_, stride_, floats_.data() + target * stride_);
    if (forms_.integers) {
      std::copy_n(values_.data() + source * inputs_, inputs_, values_.data() + target * inputs_);
      std::copy_n(scales_.data() + source * groups_, groups_, scales_.data() + target * groups_);
    }
    if (forms_.fours)
      std::copy_n(fours_.data() + source * groups_, groups_, fours_.data() + target * groups_);
    if (!forms_.bytes) return;
    std::copy_n(bytes_.data() + source * inputs_, inputs_, bytes_.data() + target * inputs_);
    std::copy_n(byte_scales_.data() + source * groups_, groups_,
                byte_scales_.data() + target * groups_);
  }

 private:
  QuantizedRow quantized(std::size_t row, std::size_t offset) {
    const std::size_t group = offset / group_values;
    return {values_.data() + row * inputs_ + offset, scales_.data() + row * groups_ + group};
  }

  int inputs_;
  int groups_;
  std::size_t stride_;
  InputForms forms_;
  bool is_alone_;                      // no other rank sets rows, of which nothing would be known
  std::atomic<bool> shifts_;           // ActivationRows::shifts, of this step's rows
  Buffer<std::int16_t> values_;
  Buffer<GroupScale> scales_;
  Buffer<std::int8_t> bytes_;
  Buffer<GroupScale> byte_scales_;
  Buffer<ScaledFours> fours_;
  Buffer<float> floats_;
};

}  // namespace headrace
