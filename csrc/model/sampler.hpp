// One token from one row of logits, by the rules of docs/concepts/sampling.md:
//
//   edits of single logits, then a mask of allowed tokens; greedy if temperature == 0; else
//   logits / temperature -> keep top-k -> softmax -> keep typical -> keep top-p -> keep min-p
//   -> leave out top choices (XTC) -> draw
//   u = (mix64(seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 11) * 2^-53
//   XTC has a number of its own: u of the seed xor 0xD1B54A32D192ED03
//
// Ties go to the lower id. Nothing sorts the vocabulary: top-k filters by a lower bound of the k-th
// logit, top-p finds its threshold in a histogram of mass, and only the candidates at the edge are
// ordered. headrace.kernels.reference.sampler says the same in NumPy.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

struct SamplingParams {
  float temperature;
  int top_k;     // 0 is off
  float top_p;
  float min_p;
  std::uint64_t seed;
  std::int64_t position;
  float typical_p = 1;         // (0, 1], 1 is off
  float xtc_threshold = 1;     // probability of a top choice
  float xtc_probability = 0;   // with which top choices are left out

  bool keeps_all() const {
    return top_p >= 1 && min_p <= 0 && typical_p >= 1 && xtc_probability <= 0;
  }
};

// Changes to one row's logits, all optional: for each edited token, divide by the factor if positive
// and multiply if not, then add; -inf bans it. Then whatever the mask leaves out is banned.
struct LogitEdits {
  int count = 0;
  const std::int32_t* ids = nullptr;      // (count,)
  const float* factors = nullptr;         // (count,)
  const float* addends = nullptr;         // (count,)
  const std::uint32_t* mask = nullptr;    // (vocab_size / 32 rounded up,) bit i % 32 of word i / 32

  bool empty() const { return count == 0 && mask == nullptr; }
};

// The likeliest tokens of a row by its raw logits, the best first.
struct TopTokens {
  int count = 0;   // at most vocab_size
  std::int32_t* ids = nullptr;     // (count,)
  float* logprobs = nullptr;       // (count,)
};

struct SampledToken {
  std::int32_t token_id;   // -1 if a logit is not finite, -2 if every token is banned
  float logprob;           // under the softmax of the raw logits
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, int vocab_size);

  // Edits `logits` in place.
  SampledToken sample(float* logits, const SamplingParams& params, const LogitEdits& edits = {},
                      const TopTokens& top = {});

 private:
  struct Candidate {
    float logit;
    float weight;   // exp((logit - peak) / temperature)
    std::int32_t id;
    double surprise = 0;   // how far from the expected one, where typical tokens are asked for
  };

  void apply(float* logits, const LogitEdits& edits) const;
  void list_top(const float* logits, float peak, double log_total, const TopTokens& top);
  static bool better(const Candidate& a, const Candidate& b);   // larger, or equal and earlier
  std::int32_t choose(const float* logits, float peak, const SamplingParams& params);
  double clear_banned(const float* logits, int first, int count);
  std::int32_t draw(const float* logits, float peak, const SamplingParams& params);
  void keep_top_k(const float* logits, int top_k);
  float kth_lower_bound(const float* logits, int top_k) const;
  void keep_plausible(const float* logits, double total, const SamplingParams& params);
  void keep_typical(float peak, double total, const SamplingParams& params);
  void keep_top_p(double wanted);
  void keep_min_p(float min_p);
  void leave_out_top_choices(const SamplingParams& params);
  double candidates_mass() const;
  std::int32_t draw_candidate(double uniform);
  std::int32_t draw_all(double uniform) const;
  double weigh_all(const float* logits, float peak, float scale);

  const KernelTable& kernels_;
  int vocab_size_;
  bool has_banned_ = false;   // in the row that is sampled
  Buffer<float> weights_;               // (vocab_size,)
  std::vector<float> raw_;              // (vocab_size,) of a row that is edited
  std::vector<double> chunk_mass_;      // sums of 512 weights each
  std::vector<Candidate> candidates_;   // capacity vocab_size
};

// A number in [0, 1) with 53 random bits, a pure function of its arguments.
double uniform_of(std::uint64_t seed, std::int64_t position);

}  // namespace headrace
