// Continuous batching in a few events a request: sim/fleet/aggregate_engine.py, which has the model
// and says what it leaves out; this one is equal to it to the bit (tests: test_native_fleet.py).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/device_model.hpp"
#include "sim/histogram.hpp"
#include "sim/segment_cache.hpp"

namespace headrace {

// What all engines of a fleet have in common.
struct EngineRules {
  DeviceModel device;
  bool prefix_cache = true;
  std::int64_t deferred_max = 0;  // the scheduler's own numbers, see engine/growth.py
  std::int64_t growth_tokens_max = 0;
  double share_start = 0.0;
  double share_min = 0.0;
  double share_max = 0.0;
  double share_raise = 0.0;
  double share_decay = 0.0;
};

struct Request {
  std::vector<PromptSegment> prompt;
  PrefixKey answer_key = 0;  // of the beginning that the prompt and its answer make
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t max_tokens = 0;
};

// One attempt inside an engine. It is owned by the list of those inside, then by the list of those
// that leave, and after that by the heap of ends, for as long as it is there.
struct EngineEntry {
  void* attempt;  // the host's
  Request request;
  std::int64_t order;
  std::int64_t outlook_tokens;  // that it may still make, bounded as the real estimate bounds them
  std::int64_t total_tokens;    // prompt, and output so far when it is computed again
  std::int64_t computed_tokens = 0;
  std::int64_t produced_before = 0;  // when it last began to decode
  std::int64_t start_step = -1;      // gave the first token since then; -1: not decoding
  bool is_gone = false;
  bool is_in_heap = false;
  bool is_over = false;  // only the heap still has it
};

class AggregateEngine;

// The world around an engine: the clock, and who is told.
class EngineHost {
 public:
  virtual double now_s() const = 0;
  virtual bool is_last_of_moment() const = 0;
  // Calls `end_span(version)` of the engine, at a time or after a delay.
  virtual void end_span_at(double time_s, std::int64_t version) = 0;
  virtual void end_span_after(double delay_s, std::int64_t version) = 0;
  virtual void cached(void* attempt, std::int64_t tokens) = 0;
  virtual void first_token(void* attempt) = 0;
  virtual void finished(void* attempt, std::int64_t produced_tokens) = 0;
  virtual void let_go(void* attempt) noexcept = 0;  // the engine has it no more

 protected:
  ~EngineHost() = default;
};

enum class Submission { taken, in_use, queue_full, too_long };

class AggregateEngine {
 public:
  AggregateEngine(EngineHost& host, const EngineRules& rules, Histogram& gaps);
  ~AggregateEngine();
  AggregateEngine(const AggregateEngine&) = delete;
  AggregateEngine& operator=(const AggregateEngine&) = delete;

  // Whether it would be taken, by everything but the length of the queue and of the context.
  Submission accepts(const void* attempt, std::int64_t tokens) const;

  // Queues what it accepts. It owns one reference of the host to `attempt` from now on.
  void submit(void* attempt, Request request);

  // Forgets it with the next step; nothing more is told of it.
  void abort(const void* attempt);

  // Accounts for a span's steps, tells what they gave, and begins the next span.
  void end_span(std::int64_t version);

  void slow_down(double factor);
  void halt() { version_ = -1; }
  void clear();  // lets go of all attempts; the engine is of no use afterwards

  std::int64_t running_count() const {
    return decoding_count_ + static_cast<std::int64_t>(prefilling_.size());
  }
  std::int64_t waiting_count() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t preemption_count() const { return preemption_count_; }
  std::int64_t context_max() const;
  const SegmentCache& cache() const { return cache_; }

  template <class Visitor>
  void for_each_attempt(Visitor visit) const {
    for (const EngineEntry* entry : inside_) visit(entry->attempt);
    for (const EngineEntry* entry : leaving_) visit(entry->attempt);
    for (const Decode& decode : decoding_)
      if (decode.entry->is_over) visit(decode.entry->attempt);
  }

 private:
  // Steps that go on without a change.
  struct Span {
    double start_s = 0.0;
    std::int64_t steps = 0;
    double first_s = 0.0;           // time of the first step
    double growth_s = 0.0;          // what each step takes longer than the one before
    std::int64_t prefill_rows = 0;  // of each step
    double duration_s = 0.0;        // of all its steps
    bool cut = false;               // it ends with the step that runs now

    double seconds(std::int64_t count) const;
    std::int64_t steps_begun(double elapsed_s) const;  // at least 1
  };

  struct Decode {
    std::int64_t end_step;  // finds the end
    std::int64_t order;
    EngineEntry* entry;
  };

  static bool is_later(const Decode& one, const Decode& other);

  void interrupt();
  void absorb();
  void end_decodes();
  void end_decode(EngineEntry* entry);
  void stop_decoding(EngineEntry& entry);
  void advance_prefill(std::int64_t rows);
  void start_decoding(EngineEntry& entry);
  void leave(EngineEntry* entry);
  void discard(EngineEntry* entry) noexcept;
  void withdraw(const EngineEntry& entry);
  void admit();
  bool has_room_for(const EngineEntry& entry, std::int64_t held_tokens) const;
  void start_prefill(EngineEntry* entry, std::int64_t known_tokens);
  void begin_span();
  void preempt_youngest();
  EngineEntry* stop_youngest_prefill();
  EngineEntry* stop_youngest_decode();

  EngineHost& host_;
  const EngineRules& rules_;
  const DeviceModel* device_;
  DeviceModel slowed_device_;
  Histogram& gaps_;
  SegmentCache cache_;
  std::int64_t running_max_;
  std::vector<EngineEntry*> inside_;
  std::vector<EngineEntry*> waiting_;
  std::vector<EngineEntry*> prefilling_;
  std::vector<EngineEntry*> leaving_;
  std::vector<Decode> decoding_;  // a heap by the step that finds the end
  std::unordered_map<PrefixKey, const EngineEntry*> promised_;
  std::int64_t prefill_tokens_left_ = 0;
  std::int64_t decoding_count_ = 0;
  std::int64_t decoding_context_ = 0;  // KV tokens of all that decode
  std::int64_t outlook_tokens_ = 0;    // what running ones may still grow, roughly
  double growth_share_;
  std::int64_t order_ = 0;
  std::int64_t step_ = 0;  // of the engine's life
  Span span_;
  bool has_span_ = false;
  std::int64_t version_ = 0;
  std::int64_t preemption_count_ = 0;
};

}  // namespace headrace
