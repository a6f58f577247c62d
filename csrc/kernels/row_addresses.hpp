// Addresses of up to 12 rows at one stride, in few registers: a base for each four rows, the stride and
// three of it. Row r begins at base(r) + index(r) * scale(r), which an instruction of x86 adds up by
// itself. Left alone a compiler works out every row's address, runs out of registers, and fetches
// addresses from memory between the multiplications.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

template <class T, int rows>
class RowAddresses {
 public:
  static_assert(rows <= 12);

  RowAddresses(const T* first, std::size_t stride)
      : low_(reinterpret_cast<std::uintptr_t>(first) - stride * sizeof(T)),
        middle_(low_ + 4 * stride * sizeof(T)),
        high_(middle_ + 4 * stride * sizeof(T)),
        stride_(stride * sizeof(T)),
        three_strides_(3 * stride_) {}

  // A stride before rows 0, 4 and 8, so that all four have an index.
  [[gnu::always_inline]] std::uintptr_t base(int r) const {
    return r < 4 ? low_ : r < 8 ? middle_ : high_;
  }
  [[gnu::always_inline]] std::size_t index(int r) const {
    return r % 4 == 2 ? three_strides_ : stride_;
  }
  static constexpr int scale(int r) { return r % 4 == 3 ? 4 : r % 4 == 1 ? 2 : 1; }

  [[gnu::always_inline]] const T* row(int r) const {
    return reinterpret_cast<const T*>(base(r) + index(r) * static_cast<std::size_t>(scale(r)));
  }

  // Keeps the compiler from knowing how they belong together; with up to 8 rows.
  [[gnu::always_inline]] void hold() {
    static_assert(rows <= 8);
    asm volatile("" : "+r"(low_), "+r"(middle_), "+r"(stride_), "+r"(three_strides_));
  }

  [[gnu::always_inline]] void advance(std::size_t count) {
    low_ += count * sizeof(T);
    middle_ += count * sizeof(T);
    high_ += count * sizeof(T);
  }

 private:
  std::uintptr_t low_;
  std::uintptr_t middle_;
  std::uintptr_t high_;
  std::size_t stride_;
  std::size_t three_strides_;
};

}  // namespace
}  // namespace headrace
