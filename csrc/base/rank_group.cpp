#include "base/rank_group.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/waiting.hpp"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace headrace {

namespace {

// A number that processes wait on; std::atomic's own wait() works inside one process only.
struct alignas(cache_line_bytes) SharedWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void sleep_while(SharedWord& word, std::uint32_t old) {
#if defined(__linux__)
  word.sleepers.fetch_add(1);
  syscall(SYS_futex, &word.value, FUTEX_WAIT, old, nullptr, nullptr, 0);
  word.sleepers.fetch_sub(1);
#else
  (void)old;
  const timespec pause{0, 50'000};
  nanosleep(&pause, nullptr);
#endif
}

void wait_for_change(SharedWord& word, std::uint32_t old) {
  if (changed_soon([&] { return word.value.load(std::memory_order_acquire) != old; })) return;
  while (word.value.load() == old) sleep_while(word, old);
}

void change(SharedWord& word) {
  word.value.fetch_add(1);
#if defined(__linux__)   // whoever counts itself a sleeper after this load finds the new value
  if (word.sleepers.load() != 0)
    syscall(SYS_futex, &word.value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace

struct RankGroup::Header {
  SharedWord arrived;
  SharedWord barrier_epoch;
  SharedWord command_epoch;
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
    change(header_->barrier_epoch);
  } else {
    wait_for_change(header_->barrier_epoch, epoch);
  }
}

void RankGroup::post(RankCommand command, const std::int32_t (&counts)[rank_counts]) {
  header_->command = command;
  std::copy_n(counts, rank_counts, header_->counts);
  change(header_->command_epoch);
}

RankCommand RankGroup::await_command() {
  wait_for_change(header_->command_epoch, commands_seen_);
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
