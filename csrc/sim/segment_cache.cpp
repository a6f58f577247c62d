#include "sim/segment_cache.hpp"

#include <algorithm>
#include <ranges>

namespace headrace {

namespace {

constexpr std::size_t index_size_min = 16;

// Keys are hashes already, of which Python's small integers keep only few bits.
std::size_t mixed(PrefixKey key) {
  const std::uint64_t product = static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::size_t>(product ^ (product >> 32));
}

}  // namespace

SegmentCache::Match SegmentCache::match(const std::vector<PromptSegment>& prompt) const {
  Match found;
  for (const PromptSegment& segment : prompt) {
    const std::int32_t place = find(segment.key);
    if (place != none && segments_[static_cast<std::size_t>(place)].references) {
      found.known_tokens += segment.tokens;
      found.held_tokens += segment.tokens;
    } else {
      const std::int64_t left =
          place == none ? 0 : segments_[static_cast<std::size_t>(place)].tokens;
      found.known_tokens += left;
      if (left < segment.tokens) break;
    }
    ++found.complete;
  }
  return found;
}

void SegmentCache::hold(const std::vector<PromptSegment>& prompt) {
  for (const PromptSegment& segment : prompt) {
    std::int32_t place = find(segment.key);
    if (place != none && at(place).references) {
      ++at(place).references;
      continue;
    }
    if (place == none) {
      place = add(segment.key, segment.tokens);
    } else {
      cached_tokens_ -= at(place).tokens;
      unlink(place);
      at(place).tokens = static_cast<std::int32_t>(segment.tokens);
    }
    at(place).references = 1;
    free_tokens_ -= segment.tokens;
  }
  evict();
}

void SegmentCache::release(const std::vector<PromptSegment>& prompt, std::int64_t computed_tokens) {
  std::int64_t end = 0;
  for (const PromptSegment& segment : prompt) end += at(find(segment.key)).tokens;
  for (const PromptSegment& segment : prompt | std::views::reverse) {
    const std::int32_t place = find(segment.key);
    const std::int64_t size = at(place).tokens;
    const std::int64_t start = end - size;
    if (--at(place).references == 0) {
      free_tokens_ += size;
      cache(place, std::min(size, computed_tokens - start));
    }
    end = start;
  }
  evict();
}

void SegmentCache::grow(std::int64_t tokens) {
  free_tokens_ -= tokens;
  if (cached_tokens_ > free_tokens_) evict();
}

void SegmentCache::keep(PrefixKey key, std::int64_t tokens) {
  if (find(key) != none) return;
  cache(add(key, tokens), tokens);
  evict();
}

// Makes a segment without references the last to be evicted, or removes it if nothing is left.
void SegmentCache::cache(std::int32_t place, std::int64_t tokens) {
  if (!keeps_content_ || tokens <= 0) {
    remove(place);
    return;
  }
  at(place).tokens = static_cast<std::int32_t>(tokens);
  append(place);
  cached_tokens_ += tokens;
}

void SegmentCache::evict() {
  std::int64_t excess = cached_tokens_ - free_tokens_;
  while (excess > 0 && first_ != none) {
    const std::int32_t place = first_;
    const std::int64_t tokens = at(place).tokens;
    if (tokens > excess) {
      at(place).tokens = static_cast<std::int32_t>(tokens - excess);
      cached_tokens_ -= excess;
      return;
    }
    unlink(place);
    remove(place);
    cached_tokens_ -= tokens;
    excess -= tokens;
  }
}

// Where a key is in the index, or where it would be.
std::size_t SegmentCache::slot_of(PrefixKey key) const {
  const std::size_t mask = index_.size() - 1;
  std::size_t slot = mixed(key) & mask;
  while (index_[slot] != none && segments_[static_cast<std::size_t>(index_[slot])].key != key)
    slot = (slot + 1) & mask;
  return slot;
}

std::int32_t SegmentCache::find(PrefixKey key) const {
  return index_.empty() ? none : index_[slot_of(key)];
}

std::int32_t SegmentCache::add(PrefixKey key, std::int64_t tokens) {
  if (2 * (count_ + 1) > index_.size()) grow_index();
  ++count_;
  std::int32_t place = free_place_;
  if (place == none) {
    place = static_cast<std::int32_t>(segments_.size());
    segments_.push_back({});
  } else {
    free_place_ = at(place).next;
  }
  at(place) = {key, static_cast<std::int32_t>(tokens), 0, none, none};
  index_[slot_of(key)] = place;
  return place;
}

// Takes it out of the index, closes the gap that later keys of the same run would stop at.
void SegmentCache::remove(std::int32_t place) {
  const std::size_t mask = index_.size() - 1;
  std::size_t gap = slot_of(at(place).key);
  for (std::size_t slot = (gap + 1) & mask; index_[slot] != none; slot = (slot + 1) & mask) {
    const std::size_t wanted = mixed(at(index_[slot]).key) & mask;
    if (((slot - wanted) & mask) >= ((slot - gap) & mask)) {
      index_[gap] = index_[slot];
      gap = slot;
    }
  }
  index_[gap] = none;
  at(place).next = free_place_;
  free_place_ = place;
  --count_;
}

void SegmentCache::grow_index() {
  const std::vector<std::int32_t> before = std::move(index_);
  index_.assign(std::max(index_size_min, 2 * before.size()), none);
  for (const std::int32_t place : before)
    if (place != none) index_[slot_of(at(place).key)] = place;
}

void SegmentCache::append(std::int32_t place) {
  at(place).previous = last_;
  at(place).next = none;
  (last_ == none ? first_ : at(last_).next) = place;
  last_ = place;
}

void SegmentCache::unlink(std::int32_t place) {
  const Segment segment = at(place);
  (segment.previous == none ? first_ : at(segment.previous).next) = segment.next;
  (segment.next == none ? last_ : at(segment.next).previous) = segment.previous;
}

}  // namespace headrace
