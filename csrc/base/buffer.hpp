// A fixed array on a cache-line boundary, zeroed, that never moves: weights, KV and scratch.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headrace {

constexpr std::size_t cache_line_bytes = 64;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;

  explicit Buffer(std::size_t count) : count_(count) {
    if (count == 0) return;
    const bool large = count * sizeof(T) >= huge_page_bytes;
    const std::size_t alignment = large ? huge_page_bytes : cache_line_bytes;
    const std::size_t bytes = round_up(count * sizeof(T), alignment);
    data_.reset(static_cast<T*>(std::aligned_alloc(alignment, bytes)));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (large) madvise(data_.get(), bytes, MADV_HUGEPAGE);  // fewer TLB misses; a hint only
#endif
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t index) { return data_.get()[index]; }
  const T& operator[](std::size_t index) const { return data_.get()[index]; }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t count_ = 0;
};

}  // namespace headrace
