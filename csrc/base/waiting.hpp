// How a thread waits for another: it spins for a moment, then yields its core, then sleeps.
//
// Spinning answers soonest. A yield gives the core to whoever wants it, and costs little if nobody
// does. But who yields to a program that computes is away for a slice of the scheduler's, whatever
// happens meanwhile, while a sleeper is woken: who was away so long does not yield in some waits that
// follow.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/buffer.hpp"

namespace headrace {

// Who waits on a word: threads of this process, or all processes that have it in their memory.
enum class Waiters { threads, processes };

// A number that threads wait on; zeroed memory is one.
struct alignas(cache_line_bytes) WaitWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Returns once the word is no longer `old`, with what was written before it changed.
void wait_for_change(WaitWord& word, std::uint32_t old, Waiters waiters = Waiters::threads);

// Wakes those who sleep at a word that has changed; a system call only if somebody does.
void wake(WaitWord& word, Waiters waiters = Waiters::threads);

// Adds one to the word and wakes who waits for that.
inline void change(WaitWord& word, Waiters waiters = Waiters::threads) {
  word.value.fetch_add(1);
  wake(word, waiters);
}

}  // namespace headrace
