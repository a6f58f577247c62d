// The processes (ranks) that run one model together, and the memory that they share.
//
// Each rank has a part of every matrix's outputs and of the kv heads; whatever all of them read lies
// here, so that a result is gathered by being written. A rank that is alone has no group at all.
//
//   header     barrier, command
//   command    what rank 0 asks the others to do: a step's arrays, pairs of blocks, one block's KV
//   buffers    taken by every rank in the same order, so that no address is ever exchanged
//
// Ranks trust each other: they are one engine's own processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/buffer.hpp"

namespace headrace {

enum class RankCommand : std::int32_t {
  step,
  copy_blocks,
  export_block,
  import_block,
  discard_kv,
  close
};
constexpr int rank_counts = 6;   // numbers that say how much data a command has

// Which part of a model's outputs a rank computes.
struct RankPlace {
  int rank = 0;
  int ranks = 1;
};

struct RowSpan {
  int first = 0;
  int end = 0;

  int count() const { return end - first; }
};

// A rank's share of `count` outputs that are only cut at multiples of `unit`; the last may be short.
RowSpan rows_of_rank(const RankPlace& place, int count, int unit);

class RankGroup {
 public:
  // Maps `byte_count` bytes of the file behind `descriptor`, which all ranks have, from `create` or
  // inherited; std::system_error if the system refuses.
  RankGroup(RankPlace place, int descriptor, std::size_t byte_count);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const RankPlace& place() const { return place_; }

  // Waits for one thread of every rank.
  void barrier();

  // Rank 0: hands the others a command, whose data (`words_max` numbers at most) is written before.
  void post(RankCommand command, const std::int32_t (&counts)[rank_counts]);
  // The others: wait for the next command.
  RankCommand await_command();
  const std::int32_t* counts() const;

  // Zeroed memory that every rank sees at its own address.
  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }

  static std::size_t taken_bytes(std::size_t byte_count) {
    return round_up(byte_count, cache_line_bytes);
  }
  static std::size_t header_bytes();

 private:
  struct Header;

  void* take_bytes(std::size_t byte_count);

  RankPlace place_;
  std::size_t size_;
  std::uint8_t* data_;
  Header* header_;
  std::size_t used_;
  std::uint32_t commands_seen_ = 0;
};

// An array that the group's ranks share, or without a group one of this process alone.
template <class T>
Buffer<T> shared_buffer(RankGroup* group, std::size_t count) {
  return group == nullptr || count == 0 ? Buffer<T>(count)
                                        : Buffer<T>(group->take<T>(count), count);
}

}  // namespace headrace
