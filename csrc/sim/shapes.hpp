// What a stream's requests look like, drawn: sim/fleet/shapes.py, to the bit. The generator is that of
// Python's `random` (MT19937, Matsumoto and Nishimura 1998), whose state it takes over.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace {

constexpr std::size_t twister_words = 624;

// sim/fleet/lengths.py: lognormal, with a slope of its own for the last tenth.
struct LengthRule {
  double median;
  double p90;
  double slope;       // of the logarithm, by the standard normal
  double tail_slope;  // beyond its 90th percentile
  std::int64_t minimum;
  std::int64_t maximum;

  LengthRule(double median, double p90, double p99, std::int64_t minimum, std::int64_t maximum);
};

class Shapes {
 public:
  Shapes(const std::array<std::uint32_t, twister_words>& words, std::size_t place,
         const LengthRule& fresh, const LengthRule& output)
      : words_(words), place_(place), fresh_(fresh), output_(output) {}

  std::int64_t fresh_tokens() { return tokens(fresh_); }
  std::int64_t output_tokens() { return tokens(output_); }
  std::uint32_t below(std::uint32_t count);  // of 1 to 2^31
  double random();

 private:
  std::uint32_t word();
  double normal();
  std::int64_t tokens(const LengthRule& rule);

  std::array<std::uint32_t, twister_words> words_;
  std::size_t place_;
  double next_normal_ = 0.0;
  bool has_next_normal_ = false;
  LengthRule fresh_;
  LengthRule output_;
};

}  // namespace headrace
