#include "model/sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace headrace {

namespace {

constexpr int bound_chunks = 256;      // maxima that bound the k-th logit from below
constexpr int mass_buckets = 512;      // of the top-p histogram
constexpr float buckets_per_log2 = 16;  // covers weights down to 2^-32 of the peak
constexpr int chunk_tokens = 512;       // whose mass is summed at once
constexpr std::uint64_t xtc_stream = 0xD1B54A32D192ED03u;   // tells its numbers from the draws'
constexpr std::size_t typical_first = 64;   // candidates that are ordered at first; then 4 times more
constexpr float banned_logit = -std::numeric_limits<float>::max();   // never chosen

std::uint64_t mix64(std::uint64_t value) {   // splitmix64's finalizer (Steele, Lea, Flood 2014)
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
  value = (value ^ value >> 27) * 0x94D049BB133111EBu;
  return value ^ value >> 31;
}

int bucket_of(float weight) {   // weight in [0, 1]; bucket 0 holds the peak
  if (weight <= 0) return mass_buckets - 1;
  const float depth = -std::log2(weight) * buckets_per_log2;
  return depth >= mass_buckets - 1 ? mass_buckets - 1 : static_cast<int>(depth);
}

}  // namespace

double uniform_of(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t counter = static_cast<std::uint64_t>(position) + 1;
  return static_cast<double>(mix64(seed + 0x9E3779B97F4A7C15u * counter) >> 11) * 0x1p-53;
}

Sampler::Sampler(const KernelTable& kernels, int vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      weights_(static_cast<std::size_t>(vocab_size)),
      chunk_mass_(static_cast<std::size_t>((vocab_size + chunk_tokens - 1) / chunk_tokens)) {
  candidates_.reserve(static_cast<std::size_t>(vocab_size));
}

SampledToken Sampler::sample(float* logits, const SamplingParams& params, const LogitEdits& edits,
                             const TopTokens& top) {
  float peak = kernels_.peak(logits, vocab_size_);
  if (!std::isfinite(peak)) return {-1, std::numeric_limits<float>::quiet_NaN()};
  const double raw_peak = peak;
  const double log_total = std::log(kernels_.exponentials(logits, vocab_size_, peak, 1.0f, nullptr));
  if (top.count > 0) list_top(logits, peak, log_total, top);
  has_banned_ = !edits.empty();
  if (!has_banned_) {
    const std::int32_t id = choose(logits, peak, params);
    return {id, static_cast<float>(logits[id] - raw_peak - log_total)};
  }
  raw_.assign(logits, logits + vocab_size_);
  apply(logits, edits);
  peak = *std::max_element(logits, logits + vocab_size_);
  if (peak <= banned_logit) return {-2, std::numeric_limits<float>::quiet_NaN()};
  const std::int32_t id = choose(logits, peak, params);
  return {id, static_cast<float>(raw_[static_cast<std::size_t>(id)] - raw_peak - log_total)};
}

std::int32_t Sampler::choose(const float* logits, float peak, const SamplingParams& params) {
  if (params.temperature != 0) return draw(logits, peak, params);
  std::int32_t id = 0;
  while (logits[id] != peak) ++id;
  return id;
}

void Sampler::apply(float* logits, const LogitEdits& edits) const {
  for (int e = 0; e < edits.count; ++e) {
    float& logit = logits[edits.ids[e]];
    if (logit <= banned_logit) continue;
    const double scaled = logit > 0 ? static_cast<double>(logit) / edits.factors[e]
                                    : static_cast<double>(logit) * edits.factors[e];
    logit = std::max(static_cast<float>(scaled + edits.addends[e]), banned_logit);
  }
  if (edits.mask == nullptr) return;
  for (int first = 0; first < vocab_size_; first += 32) {
    const std::uint32_t allowed = edits.mask[first / 32];
    if (allowed == ~0u) continue;
    const int end = std::min(vocab_size_, first + 32);
    for (int i = first; i < end; ++i)
      if ((allowed >> (i - first) & 1) == 0) logits[i] = banned_logit;
  }
}

void Sampler::list_top(const float* logits, float peak, double log_total, const TopTokens& top) {
  has_banned_ = false;
  keep_top_k(logits, top.count);
  std::sort(candidates_.begin(), candidates_.end(), better);
  for (int i = 0; i < top.count; ++i) {
    const Candidate& candidate = candidates_[static_cast<std::size_t>(i)];
    top.ids[i] = candidate.id;
    top.logprobs[i] = static_cast<float>(static_cast<double>(candidate.logit) - peak - log_total);
  }
}

bool Sampler::better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

std::int32_t Sampler::draw(const float* logits, float peak, const SamplingParams& params) {
  const double uniform = uniform_of(params.seed, params.position);
  double total = 0;
  if (params.top_k > 0 && params.top_k < vocab_size_) {
    keep_top_k(logits, params.top_k);
    for (Candidate& candidate : candidates_) {
      const double exponent = (static_cast<double>(candidate.logit) - peak) / params.temperature;
      candidate.weight = static_cast<float>(std::exp(exponent));
      total += candidate.weight;
    }
  } else {
    total = weigh_all(logits, peak, 1.0f / params.temperature);
    if (params.keeps_all()) return draw_all(uniform);
    keep_plausible(logits, total, params);
  }
  if (params.typical_p < 1) {
    keep_typical(peak, total, params);
    total = candidates_mass();
  }
  if (params.top_p < 1) keep_top_p(params.top_p * total);
  if (params.min_p > 0) keep_min_p(params.min_p);
  if (params.xtc_probability > 0) leave_out_top_choices(params);
  return draw_candidate(uniform);
}

// All tokens that top-p or min-p could keep; those far below both limits are left out at once,
// unless typical tokens are asked for, which may be far below the peak.
void Sampler::keep_plausible(const float* logits, double total, const SamplingParams& params) {
  const double spare = params.top_p < 1 ? (1.0 - params.top_p) * total / vocab_size_ : 0.0;
  const float least = params.typical_p < 1
                          ? 0.0f
                          : std::max(static_cast<float>(spare * 0.5), params.min_p * 0.5f);
  candidates_.clear();
  for (int i = 0; i < vocab_size_; ++i) {
    const float weight = weights_[static_cast<std::size_t>(i)];
    if (weight > 0 && weight >= least) candidates_.push_back({logits[i], weight, i});
  }
}

double Sampler::candidates_mass() const {
  double mass = 0;
  for (const Candidate& candidate : candidates_) mass += candidate.weight;
  return mass;
}

// Keeps those whose surprise, -log p, is nearest to the expected one, the entropy, up to a mass
// (Meister et al. 2023).
void Sampler::keep_typical(float peak, double total, const SamplingParams& params) {
  double expected = 0;
  const double log_total = std::log(total);
  for (Candidate& candidate : candidates_) {
    const double exponent = (static_cast<double>(candidate.logit) - peak) / params.temperature;
    candidate.surprise = log_total - exponent;
    expected += candidate.weight / total * candidate.surprise;
  }
  for (Candidate& candidate : candidates_)
    candidate.surprise = std::abs(candidate.surprise - expected);
  const auto nearer = [](const Candidate& a, const Candidate& b) {
    return a.surprise < b.surprise || (a.surprise == b.surprise && a.id < b.id);
  };
  const double wanted = params.typical_p * total;
  for (std::size_t ordered = typical_first;; ordered *= 4) {
    ordered = std::min(ordered, candidates_.size());
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(ordered);
    std::partial_sort(candidates_.begin(), end, candidates_.end(), nearer);
    double mass = 0;
    auto kept = candidates_.begin();
    while (kept != end && (kept == candidates_.begin() || mass < wanted)) mass += (kept++)->weight;
    if (mass < wanted && ordered < candidates_.size()) continue;
    candidates_.erase(kept, candidates_.end());
    return;
  }
}

void Sampler::keep_min_p(float min_p) {
  float most = 0;
  for (const Candidate& candidate : candidates_) most = std::max(most, candidate.weight);
  const float least = min_p * most;
  std::erase_if(candidates_, [least](const Candidate& c) { return c.weight < least; });
}

// XTC: where two or more tokens reach the threshold, only the least likely of them stays.
void Sampler::leave_out_top_choices(const SamplingParams& params) {
  if (uniform_of(params.seed ^ xtc_stream, params.position) >= params.xtc_probability) return;
  const double threshold = params.xtc_threshold * candidates_mass();
  const Candidate* kept = nullptr;
  for (const Candidate& candidate : candidates_)
    if (candidate.weight >= threshold && (kept == nullptr || better(*kept, candidate)))
      kept = &candidate;
  if (kept == nullptr) return;
  const std::int32_t kept_id = kept->id;
  std::erase_if(candidates_, [threshold, kept_id](const Candidate& c) {
    return c.weight >= threshold && c.id != kept_id;
  });
}

std::int32_t Sampler::draw_candidate(double uniform) {
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double total = candidates_mass();
  double running = 0;
  std::int32_t last = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    last = candidate.id;
    running += candidate.weight;
    if (running > uniform * total) break;
  }
  return last;
}

std::int32_t Sampler::draw_all(double uniform) const {
  double total = 0;
  for (const double mass : chunk_mass_) total += mass;
  const double wanted = uniform * total;
  double running = 0;
  std::size_t chunk = 0;
  while (chunk + 1 < chunk_mass_.size() && running + chunk_mass_[chunk] <= wanted)
    running += chunk_mass_[chunk++];
  const int end = std::min(vocab_size_, static_cast<int>(chunk + 1) * chunk_tokens);
  std::int32_t last = 0;
  for (int i = static_cast<int>(chunk) * chunk_tokens; i < end; ++i) {
    if (weights_[static_cast<std::size_t>(i)] > 0) last = i;
    running += weights_[static_cast<std::size_t>(i)];
    if (running > wanted) break;
  }
  return last;
}

double Sampler::weigh_all(const float* logits, float peak, float scale) {
  double total = 0;
  for (std::size_t chunk = 0; chunk < chunk_mass_.size(); ++chunk) {
    const int first = static_cast<int>(chunk) * chunk_tokens;
    const int count = std::min(chunk_tokens, vocab_size_ - first);
    chunk_mass_[chunk] = kernels_.exponentials(logits + first, count, peak, scale,
                                               weights_.data() + first);
    if (has_banned_) chunk_mass_[chunk] = clear_banned(logits, first, count);
    total += chunk_mass_[chunk];
  }
  return total;
}

// Weighs the banned tokens of a chunk at exactly nothing; the mass of the others.
double Sampler::clear_banned(const float* logits, int first, int count) {
  double mass = 0;
  for (int i = first; i < first + count; ++i) {
    float& weight = weights_[static_cast<std::size_t>(i)];
    if (logits[i] <= banned_logit) weight = 0;
    mass += weight;
  }
  return mass;
}

float Sampler::kth_lower_bound(const float* logits, int top_k) const {
  if (top_k > bound_chunks / 2 || vocab_size_ < 4 * bound_chunks)
    return -std::numeric_limits<float>::infinity();
  // The k-th largest of the chunks' maxima: at least k logits reach it.
  std::array<float, bound_chunks> maxima;
  const int chunk = vocab_size_ / bound_chunks;
  for (int c = 0; c < bound_chunks; ++c) {
    const int first = c * chunk;
    const int end = c == bound_chunks - 1 ? vocab_size_ : first + chunk;
    maxima[static_cast<std::size_t>(c)] = kernels_.peak(logits + first, end - first);
  }
  std::nth_element(maxima.begin(), maxima.begin() + (top_k - 1), maxima.end(), std::greater<>());
  return maxima[static_cast<std::size_t>(top_k - 1)];
}

void Sampler::keep_top_k(const float* logits, int top_k) {
  const float bound = kth_lower_bound(logits, top_k);
  candidates_.clear();
  for (int i = 0; i < vocab_size_; ++i)
    if (logits[i] >= bound && !(has_banned_ && logits[i] <= banned_logit))
      candidates_.push_back({logits[i], 0.0f, i});
  if (candidates_.size() <= static_cast<std::size_t>(top_k)) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + (top_k - 1), candidates_.end(),
                   better);
  candidates_.resize(static_cast<std::size_t>(top_k));
}

// Keeps the smallest prefix, by falling weight and rising id, whose weights reach `wanted`.
void Sampler::keep_top_p(double wanted) {
  std::array<double, mass_buckets> mass{};
  for (const Candidate& candidate : candidates_)
    mass[static_cast<std::size_t>(bucket_of(candidate.weight))] += candidate.weight;
  double above = 0;   // mass of the buckets before the edge
  int edge = 0;
  while (edge < mass_buckets - 1 && above + mass[static_cast<std::size_t>(edge)] < wanted)
    above += mass[static_cast<std::size_t>(edge++)];
  const auto edge_begin =
      std::partition(candidates_.begin(), candidates_.end(),
                     [&](const Candidate& c) { return bucket_of(c.weight) < edge; });
  const auto edge_end = std::partition(
      edge_begin, candidates_.end(), [&](const Candidate& c) { return bucket_of(c.weight) == edge; });
  std::sort(edge_begin, edge_end, [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  });
  auto kept = edge_begin;
  while (kept != edge_end && (kept == candidates_.begin() || above < wanted))
    above += (kept++)->weight;
  candidates_.erase(kept, candidates_.end());
}

}  // namespace headrace
