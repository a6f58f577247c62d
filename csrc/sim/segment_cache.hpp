// What an engine's KV pool holds, in segments: sim/fleet/prefix_cache.py, which has the rules.
//
//   index   open addressing: key -> place in `segments_`, at most half full
//   segments_   held ones have references; the others form a list, the next to be evicted first
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

using PrefixKey = std::int64_t;

// One stretch of a prompt: the key of the prompt's beginning that ends with it, and its tokens.
struct PromptSegment {
  PrefixKey key;
  std::int64_t tokens;
};

class SegmentCache {
 public:
  struct Match {
    std::int64_t known_tokens = 0;  // from the start on
    std::int64_t held_tokens = 0;   // of those
    std::size_t complete = 0;       // segments that are fully known
  };

  SegmentCache(std::int64_t capacity_tokens, bool keeps_content)
      : keeps_content_(keeps_content), free_tokens_(capacity_tokens) {}

  Match match(const std::vector<PromptSegment>& prompt) const;

  // A request with this prompt runs.
  void hold(const std::vector<PromptSegment>& prompt);

  // It runs no more; what was computed of its prompt stays, as long as it may.
  void release(const std::vector<PromptSegment>& prompt, std::int64_t computed_tokens);

  // Running requests made so many tokens, or, if negative, gave them back.
  void grow(std::int64_t tokens);

  // Content that a request leaves besides its prompt.
  void keep(PrefixKey key, std::int64_t tokens);

  std::int64_t free_tokens() const { return free_tokens_; }  // cached content gives way

 private:
  struct Segment {
    PrefixKey key;
    std::int32_t tokens;      // of a cached one: what is left of it
    std::int32_t references;  // 0: cached
    std::int32_t previous;    // places in the list of the cached ones
    std::int32_t next;        // or in that of the free places
  };

  static constexpr std::int32_t none = -1;

  std::size_t slot_of(PrefixKey key) const;
  std::int32_t find(PrefixKey key) const;
  Segment& at(std::int32_t place) { return segments_[static_cast<std::size_t>(place)]; }
  std::int32_t add(PrefixKey key, std::int64_t tokens);
  void remove(std::int32_t place);
  void grow_index();
  void append(std::int32_t place);
  void unlink(std::int32_t place);
  void cache(std::int32_t place, std::int64_t tokens);
  void evict();

  std::vector<Segment> segments_;
  std::vector<std::int32_t> index_;
  std::size_t count_ = 0;
  std::int32_t free_place_ = none;
  std::int32_t first_ = none;
  std::int32_t last_ = none;
  bool keeps_content_;
  std::int64_t cached_tokens_ = 0;
  std::int64_t free_tokens_;
};

}  // namespace headrace
