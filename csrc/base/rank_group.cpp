#include "base/rank_group.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/waiting.hpp"

namespace headrace {

struct RankGroup::Header {
  WaitWord arrived;
  WaitWord barrier_epoch;
  WaitWord command_epoch;
  RankCommand command;
  std::int32_t counts[rank_counts];
};

RowSpan rows_of_rank(const RankPlace& place, int count, int unit) {
  const long long units = (static_cast<long long>(count) + unit - 1) / unit;
  const auto start = [&](int rank) {
    return static_cast<int>(std::min<long long>(count, units * rank / place.ranks * unit));
  };
  return {start(place.rank), start(place.rank + 1)};
}

RankGroup::RankGroup(RankPlace place, int descriptor, std::size_t byte_count)
    : place_(place), size_(byte_count), used_(header_bytes()) {
  // Every rank asks for the same size; what nobody touches takes no memory.
  if (ftruncate(descriptor, static_cast<off_t>(size_)) != 0)
    throw std::system_error(errno, std::generic_category(), "shared memory of the ranks");
  void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "shared memory of the ranks");
  data_ = static_cast<std::uint8_t*>(data);
  header_ = reinterpret_cast<Header*>(data_);   // a new file is zeros, which is how it begins
}

RankGroup::~RankGroup() {
  if (place_.rank == 0) post(RankCommand::close, {});
  munmap(data_, size_);
}

std::size_t RankGroup::header_bytes() { return taken_bytes(sizeof(Header)); }

void RankGroup::barrier() {
  const std::uint32_t epoch = header_->barrier_epoch.value.load(std::memory_order_acquire);
  const std::uint32_t ranks = static_cast<std::uint32_t>(place_.ranks);
  if (header_->arrived.value.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks) {
    header_->arrived.value.store(0, std::memory_order_relaxed);
    change(header_->barrier_epoch, Waiters::processes);
  } else {
    wait_for_change(header_->barrier_epoch, epoch, Waiters::processes);
  }
}

void RankGroup::post(RankCommand command, const std::int32_t (&counts)[rank_counts]) {
  header_->command = command;
  std::copy_n(counts, rank_counts, header_->counts);
  change(header_->command_epoch, Waiters::processes);
}

RankCommand RankGroup::await_command() {
  wait_for_change(header_->command_epoch, commands_seen_, Waiters::processes);
  ++commands_seen_;
  return header_->command;
}

const std::int32_t* RankGroup::counts() const { return header_->counts; }

void* RankGroup::take_bytes(std::size_t byte_count) {
  void* at = data_ + used_;
  used_ += taken_bytes(byte_count);
  if (used_ > size_) throw std::logic_error("the ranks' shared memory was planned too small");
  return at;
}

}  // namespace headrace
