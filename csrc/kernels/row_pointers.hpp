// Pointers to up to 8 rows at one stride in four registers: two bases, one and three strides. Left to
// itself a compiler works out every row's address on its own, runs out of registers, and fetches them
// from memory between the multiplications.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

template <class T>
class RowPointers {
 public:
  static constexpr int rows_max = 8;

  RowPointers(const T* first, std::size_t stride)
      : low_(reinterpret_cast<const std::uint8_t*>(first)),
        high_(low_ + 4 * stride * sizeof(T)),
        stride_(stride * sizeof(T)),
        three_strides_(3 * stride_) {}

  [[gnu::always_inline]] const T* row(int r) const {
    const std::uint8_t* base = r < 4 ? low_ : high_;
    const int step = r % 4;
    if (step == 3) return reinterpret_cast<const T*>(base + three_strides_);
    return reinterpret_cast<const T*>(base + static_cast<std::size_t>(step) * stride_);
  }

  [[gnu::always_inline]] void advance(std::size_t count) {
    low_ += count * sizeof(T);
    high_ += count * sizeof(T);
  }

  // Keeps the compiler from knowing how the four belong together.
  [[gnu::always_inline]] void hold() {
#if defined(__GNUC__)
    asm volatile("" : "+r"(low_), "+r"(high_), "+r"(stride_), "+r"(three_strides_));
#endif
  }

 private:
  const std::uint8_t* low_;
  const std::uint8_t* high_;
  std::size_t stride_;
  std::size_t three_strides_;
};

}  // namespace
}  // namespace headrace
