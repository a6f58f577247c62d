// One token from one row of logits, by the rules of docs/concepts/sampling.md:
//
//   greedy if temperature == 0; else
//   logits / temperature -> keep top-k -> softmax -> keep top-p -> keep min-p -> draw
//   u = (mix64(seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 11) * 2^-53
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
};

struct SampledToken {
  std::int32_t token_id;   // -1 if a logit is not finite
  float logprob;           // under the softmax of the raw logits
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, int vocab_size);

  SampledToken sample(const float* logits, const SamplingParams& params);

 private:
  struct Candidate {
    float logit;
    float weight;   // exp((logit - peak) / temperature)
    std::int32_t id;
  };

  std::int32_t draw(const float* logits, float peak, const SamplingParams& params);
  void keep_top_k(const float* logits, int top_k);
  float kth_lower_bound(const float* logits, int top_k) const;
  void keep_plausible(const float* logits, double total, const SamplingParams& params);
  void keep_top_p(double wanted);
  std::int32_t draw_candidate(float min_p, double uniform);
  std::int32_t draw_all(double uniform) const;
  double weigh_all(const float* logits, float peak, float scale);

  const KernelTable& kernels_;
  int vocab_size_;
  Buffer<float> weights_;               // (vocab_size,)
  std::vector<double> chunk_mass_;      // sums of 512 weights each
  std::vector<Candidate> candidates_;   // capacity vocab_size
};

// A number in [0, 1) with 53 random bits, a pure function of its arguments.
double uniform_of(std::uint64_t seed, std::int64_t position);

}  // namespace headrace
