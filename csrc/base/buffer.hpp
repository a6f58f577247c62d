// A fixed array on a cache-line boundary, zeroed, that never moves: weights, KV and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

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
    // Large zeroed memory comes from the system untouched: a page costs nothing until it is used.
    memory_.reset(std::calloc(bytes + alignment, 1));
    if (!memory_) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = reinterpret_cast<T*>(round_up(address, alignment));
#if defined(__linux__)
    if (large) madvise(data_, bytes, MADV_HUGEPAGE);   // fewer TLB misses; a hint only
#endif
  }

  // Over memory of somebody else, who keeps it: shared by processes (rank_group.hpp).
  Buffer(T* data, std::size_t count) : data_(data), count_(count) {}

  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)),
        data_(std::exchange(other.data_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    data_ = std::exchange(other.data_, nullptr);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  // Zeroes everything; large memory goes back to the system and costs nothing until it is used.
  void discard() {
    if (count_ == 0) return;
    const std::size_t bytes = count_ * sizeof(T);
#if defined(__linux__)
    if (bytes >= huge_page_bytes &&
        madvise(data_, round_up(bytes, huge_page_bytes), MADV_DONTNEED) == 0)
      return;
#endif
    std::memset(static_cast<void*>(data_), 0, bytes);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t index) { return data_[index]; }
  const T& operator[](std::size_t index) const { return data_[index]; }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace headrace
