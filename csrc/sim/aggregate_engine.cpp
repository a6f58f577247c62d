#include "sim/aggregate_engine.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <utility>

namespace headrace {

namespace {

constexpr std::int64_t endless_steps = std::int64_t{1} << 40;

void take_out(std::vector<EngineEntry*>& entries, const EngineEntry* entry) {
  entries.erase(std::find(entries.begin(), entries.end(), entry));
}

}  // namespace

AggregateEngine::AggregateEngine(EngineHost& host, const EngineRules& rules, Histogram& gaps)
    : host_(host),
      rules_(rules),
      device_(&rules.device),
      gaps_(gaps),
      cache_(rules.device.kv_tokens, rules.prefix_cache),
      running_max_(std::min(rules.device.sequences_max, rules.device.step_rows)),
      growth_share_(rules.share_start) {}

AggregateEngine::~AggregateEngine() { clear(); }

void AggregateEngine::clear() {
  for (const Decode& decode : std::exchange(decoding_, {})) {
    decode.entry->is_in_heap = false;
    if (decode.entry->is_over) discard(decode.entry);
  }
  waiting_.clear();
  prefilling_.clear();
  for (EngineEntry* entry : std::exchange(inside_, {})) discard(entry);
  for (EngineEntry* entry : std::exchange(leaving_, {})) discard(entry);
}

std::int64_t AggregateEngine::context_max() const {
  return std::min(device_->max_model_len, device_->kv_tokens);
}

Submission AggregateEngine::accepts(const void* attempt, std::int64_t tokens) const {
  const auto is_it = [attempt](const EngineEntry* entry) { return entry->attempt == attempt; };
  if (std::any_of(inside_.begin(), inside_.end(), is_it)) return Submission::in_use;
  if (waiting_count() >= device_->waiting_max) return Submission::queue_full;
  return tokens >= context_max() ? Submission::too_long : Submission::taken;
}

void AggregateEngine::submit(void* attempt, Request request) {
  const std::int64_t outlook = std::min(rules_.growth_tokens_max, request.max_tokens);
  const std::int64_t prompt = request.prompt_tokens;
  auto* entry = new EngineEntry{attempt, std::move(request), ++order_, outlook, prompt};
  inside_.push_back(entry);
  waiting_.push_back(entry);
  if (!has_span_ ||
      (prefill_tokens_left_ <= device_->step_rows && running_count() < running_max_))
    interrupt();
}

void AggregateEngine::abort(const void* attempt) {
  const auto is_it = [attempt](const EngineEntry* entry) { return entry->attempt == attempt; };
  const auto found = std::find_if(inside_.begin(), inside_.end(), is_it);
  if (found == inside_.end()) return;
  EngineEntry* entry = *found;
  inside_.erase(found);
  entry->is_gone = true;
  leaving_.push_back(entry);
  interrupt();
}

void AggregateEngine::slow_down(double factor) {
  slowed_device_ = rules_.device.slowed(factor);
  device_ = &slowed_device_;
  interrupt();
}

// Lets the span end with the step that runs, so that the next one sees what changed.
void AggregateEngine::interrupt() {
  if (version_ < 0) return;
  if (!has_span_) {
    ++version_;
    has_span_ = true;
    span_ = Span{.start_s = host_.now_s(), .cut = true};
    if (host_.is_last_of_moment())
      end_span(version_);
    else  // what else comes at this time belongs to the same step
      host_.end_span_after(0.0, version_);
  } else if (!span_.cut) {
    span_.cut = true;
    const std::int64_t steps = span_.steps_begun(host_.now_s() - span_.start_s);
    if (steps < span_.steps) {
      span_.steps = steps;
      span_.duration_s = span_.seconds(steps);
      ++version_;
      host_.end_span_at(std::max(host_.now_s(), span_.start_s + span_.duration_s), version_);
    }
  }
}

void AggregateEngine::end_span(std::int64_t version) {
  if (version != version_) return;
  if (span_.steps) absorb();
  while (!leaving_.empty()) {
    EngineEntry* entry = leaving_.back();
    leaving_.pop_back();
    leave(entry);
  }
  if (version_ < 0) return;  // halted by somebody who was told
  if (!waiting_.empty()) admit();
  begin_span();
}

void AggregateEngine::absorb() {
  const Span span = span_;
  step_ += span.steps;
  if (decoding_count_) {
    const std::int64_t tokens = span.steps * decoding_count_;
    gaps_.add(span.duration_s / static_cast<double>(span.steps), static_cast<double>(tokens));
    decoding_context_ += tokens;
    cache_.grow(tokens);
  }
  end_decodes();
  if (span.prefill_rows) advance_prefill(span.steps * span.prefill_rows);
  if (growth_share_ > rules_.share_min)
    growth_share_ = std::max(
        rules_.share_min,
        growth_share_ * std::pow(rules_.share_decay, static_cast<double>(span.steps)));
}

bool AggregateEngine::is_later(const Decode& one, const Decode& other) {
  return one.end_step != other.end_step ? one.end_step > other.end_step : one.order > other.order;
}

void AggregateEngine::end_decodes() {
  while (!decoding_.empty() && decoding_.front().end_step <= step_) {
    std::pop_heap(decoding_.begin(), decoding_.end(), is_later);
    EngineEntry* entry = decoding_.back().entry;
    decoding_.pop_back();
    entry->is_in_heap = false;
    if (entry->is_over)
      discard(entry);
    else if (!entry->is_gone && entry->start_step >= 0)
      end_decode(entry);
  }
}

void AggregateEngine::end_decode(EngineEntry* entry) {
  const Request& request = entry->request;
  stop_decoding(*entry);
  if (rules_.prefix_cache) cache_.keep(request.answer_key, request.output_tokens);
  cache_.release(request.prompt, request.prompt_tokens);
  take_out(inside_, entry);
  const auto discarding = [this](EngineEntry* over) { discard(over); };
  const std::unique_ptr<EngineEntry, decltype(discarding)> over(entry, discarding);
  host_.finished(entry->attempt, request.output_tokens);  // may throw
}

// Takes a sequence out of the sums; its output's KV is free.
void AggregateEngine::stop_decoding(EngineEntry& entry) {
  const std::int64_t grown = step_ - entry.start_step;
  --decoding_count_;
  decoding_context_ -= entry.total_tokens + grown;
  cache_.grow(-(entry.total_tokens - entry.request.prompt_tokens + grown));
  outlook_tokens_ -= entry.outlook_tokens;
  // The step after the last token finds the end.
  entry.produced_before =
      std::min(entry.produced_before + grown + 1, entry.request.output_tokens);
  entry.start_step = -1;
}

void AggregateEngine::advance_prefill(std::int64_t rows) {
  while (rows && !prefilling_.empty()) {
    EngineEntry* entry = prefilling_.front();
    const std::int64_t wanted = entry->total_tokens - entry->computed_tokens;
    const std::int64_t taken = std::min(wanted, rows);
    rows -= taken;
    entry->computed_tokens += taken;
    prefill_tokens_left_ -= taken;
    if (taken == wanted) {
      prefilling_.erase(prefilling_.begin());
      withdraw(*entry);
      start_decoding(*entry);
    }
  }
}

void AggregateEngine::start_decoding(EngineEntry& entry) {
  entry.start_step = step_;
  ++decoding_count_;
  decoding_context_ += entry.total_tokens;
  // One that was preempted with only its end to find still takes a step for it.
  const std::int64_t left = entry.request.output_tokens - entry.produced_before;
  decoding_.push_back({step_ + std::max<std::int64_t>(left, 1), entry.order, &entry});
  std::push_heap(decoding_.begin(), decoding_.end(), is_later);
  entry.is_in_heap = true;
  if (!entry.is_gone && entry.produced_before == 0) host_.first_token(entry.attempt);
}

// Takes an aborted request out, wherever it is.
void AggregateEngine::leave(EngineEntry* entry) {
  if (entry->start_step >= 0) {
    stop_decoding(*entry);
    cache_.release(entry->request.prompt, entry->request.prompt_tokens);
  } else if (std::find(prefilling_.begin(), prefilling_.end(), entry) != prefilling_.end()) {
    take_out(prefilling_, entry);
    prefill_tokens_left_ -= entry->total_tokens - entry->computed_tokens;
    outlook_tokens_ -= entry->outlook_tokens;
    withdraw(*entry);
    cache_.grow(-entry->produced_before);
    cache_.release(entry->request.prompt, entry->computed_tokens);
  } else {
    take_out(waiting_, entry);
  }
  discard(entry);
}

// The end of an entry, unless the heap has it: then that is the end of it.
void AggregateEngine::discard(EngineEntry* entry) noexcept {
  entry->is_over = true;
  if (entry->is_in_heap) return;
  void* attempt = entry->attempt;
  delete entry;
  host_.let_go(attempt);
}

void AggregateEngine::withdraw(const EngineEntry& entry) {
  if (promised_.empty()) return;
  for (const PromptSegment& segment : entry.request.prompt) {
    const auto found = promised_.find(segment.key);
    if (found != promised_.end() && found->second == &entry) promised_.erase(found);
  }
}

void AggregateEngine::admit() {
  std::vector<EngineEntry*> passed_over;
  const std::int64_t rows = device_->step_rows - decoding_count_;
  while (!waiting_.empty() && running_count() < running_max_) {
    if (prefill_tokens_left_ >= rows ||
        static_cast<std::int64_t>(passed_over.size()) == rules_.deferred_max)
      break;
    EngineEntry* entry = waiting_.front();
    const std::vector<PromptSegment>& prompt = entry->request.prompt;
    const SegmentCache::Match found = cache_.match(prompt);
    if (found.complete < prompt.size() && promised_.contains(prompt[found.complete].key)) {
      passed_over.push_back(entry);
      waiting_.erase(waiting_.begin());
      continue;
    }
    if (!has_room_for(*entry, found.held_tokens)) break;
    waiting_.erase(waiting_.begin());
    start_prefill(entry, found.known_tokens);
  }
  waiting_.insert(waiting_.begin(), passed_over.begin(), passed_over.end());
}

bool AggregateEngine::has_room_for(const EngineEntry& entry, std::int64_t held_tokens) const {
  const std::int64_t needed = entry.total_tokens - held_tokens + device_->block_size_tokens / 2;
  std::int64_t reserve = 0;
  if (running_count())
    reserve = static_cast<std::int64_t>(
        growth_share_ * static_cast<double>(outlook_tokens_ + entry.outlook_tokens));
  return needed + reserve <= cache_.free_tokens();
}

void AggregateEngine::start_prefill(EngineEntry* entry, std::int64_t known_tokens) {
  const std::int64_t block = device_->block_size_tokens;
  entry->computed_tokens = std::min(known_tokens, entry->total_tokens - 1) / block * block;
  if (entry->produced_before == 0) host_.cached(entry->attempt, entry->computed_tokens);
  cache_.hold(entry->request.prompt);
  cache_.grow(entry->produced_before);
  if (rules_.prefix_cache)
    for (const PromptSegment& segment : entry->request.prompt)
      promised_.try_emplace(segment.key, entry);
  prefilling_.push_back(entry);
  prefill_tokens_left_ += entry->total_tokens - entry->computed_tokens;
  outlook_tokens_ += entry->outlook_tokens;
}

void AggregateEngine::begin_span() {
  ++version_;
  has_span_ = running_count() > 0;
  if (!has_span_) {
    assert(waiting_.empty() && "a request fits alone, or is refused before");
    return;
  }
  while (decoding_count_ > cache_.free_tokens() && running_count() > 1) preempt_youngest();
  const DeviceModel& device = *device_;
  const std::int64_t decoding = decoding_count_;
  std::int64_t steps = decoding_.empty() ? endless_steps : decoding_.front().end_step - step_;
  if (decoding)
    steps = std::min(steps, std::max<std::int64_t>(1, cache_.free_tokens() / decoding));
  const std::int64_t prefill_rows = std::min(device.step_rows - decoding, prefill_tokens_left_);
  double context = static_cast<double>(decoding_context_ + decoding);
  double pairs = 0.0;
  double growth_s = 0.0;
  std::int64_t sequences = decoding;
  if (prefill_rows) {
    const EngineEntry& head = *prefilling_.front();
    const std::int64_t done = head.computed_tokens;
    const std::int64_t wanted = head.total_tokens - done;
    steps = std::min(steps, std::max<std::int64_t>(1, wanted / prefill_rows));
    const auto chunk = static_cast<double>(std::min(prefill_rows, wanted));
    context += static_cast<double>(done + prefill_rows);
    pairs = chunk * (static_cast<double>(done) + chunk / 2);
    growth_s = chunk * (device.context_token_s + chunk * device.pair_s);
    const auto prompts = static_cast<std::int64_t>(prefilling_.size());
    sequences += std::max<std::int64_t>(
        1, std::min(prompts, prefill_rows / std::max<std::int64_t>(1, wanted)));
  }
  const double first_s = device.step_s(decoding + prefill_rows, sequences, context, pairs);
  growth_s += static_cast<double>(decoding) * device.context_token_s;
  span_ = Span{host_.now_s(), steps, first_s, growth_s, prefill_rows};
  span_.duration_s = span_.seconds(steps);
  host_.end_span_after(span_.duration_s, version_);
}

// Gives a running request's KV to the others; it is computed again, its output too.
void AggregateEngine::preempt_youngest() {
  ++preemption_count_;
  growth_share_ = std::min(rules_.share_max, growth_share_ + rules_.share_raise);
  EngineEntry* entry = prefilling_.empty() ? stop_youngest_decode() : stop_youngest_prefill();
  cache_.release(entry->request.prompt, entry->computed_tokens);
  entry->computed_tokens = 0;
  entry->total_tokens = entry->request.prompt_tokens + entry->produced_before;
  waiting_.insert(waiting_.begin(), entry);
}

EngineEntry* AggregateEngine::stop_youngest_prefill() {
  EngineEntry* entry = prefilling_.back();
  prefilling_.pop_back();
  prefill_tokens_left_ -= entry->total_tokens - entry->computed_tokens;
  outlook_tokens_ -= entry->outlook_tokens;
  withdraw(*entry);
  cache_.grow(-entry->produced_before);
  return entry;
}

EngineEntry* AggregateEngine::stop_youngest_decode() {
  auto youngest = decoding_.end();
  for (auto decode = decoding_.begin(); decode != decoding_.end(); ++decode)
    if (decode->entry->start_step >= 0 &&
        (youngest == decoding_.end() || decode->order > youngest->order))
      youngest = decode;
  EngineEntry* entry = youngest->entry;
  decoding_.erase(youngest);
  std::make_heap(decoding_.begin(), decoding_.end(), is_later);
  entry->is_in_heap = false;
  stop_decoding(*entry);
  entry->computed_tokens = entry->request.prompt_tokens;
  return entry;
}

double AggregateEngine::Span::seconds(std::int64_t count) const {
  const auto pairs = static_cast<double>(count * (count - 1));
  return static_cast<double>(count) * first_s + pairs / 2 * growth_s;
}

std::int64_t AggregateEngine::Span::steps_begun(double elapsed_s) const {
  double done = 0.0;
  if (growth_s <= 0) {
    done = elapsed_s / first_s;
  } else {
    const double linear = first_s - growth_s / 2;
    done = (std::sqrt(linear * linear + 2 * growth_s * elapsed_s) - linear) / growth_s;
  }
  return std::min(static_cast<std::int64_t>(done + 1e-9) + 1, steps);
}

}  // namespace headrace
