#include "sim/shapes.hpp"

#include <bit>
#include <cmath>

namespace headrace {

namespace {

constexpr double z_90 = 1.2815515655446004;
constexpr double z_99 = 2.3263478740408408;
constexpr double two_pi = 2.0 * 3.141592653589793;
constexpr std::size_t middle = 397;

std::uint32_t twisted(std::uint32_t upper, std::uint32_t lower) {
  const std::uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);
  return (mixed >> 1) ^ (mixed & 1u ? 0x9908b0dfu : 0u);
}

}  // namespace

LengthRule::LengthRule(double median_, double p90_, double p99, std::int64_t minimum_,
                       std::int64_t maximum_)
    : median(median_),
      p90(p90_),
      slope(std::log(p90_ / median_) / z_90),
      tail_slope(p99 > 0.0 ? std::log(p99 / p90_) / (z_99 - z_90) : -1.0),
      minimum(minimum_),
      maximum(maximum_) {}

std::uint32_t Shapes::word() {
  if (place_ >= twister_words) {
    for (std::size_t at = 0; at < twister_words; ++at)
      words_[at] = words_[(at + middle) % twister_words] ^
                   twisted(words_[at], words_[(at + 1) % twister_words]);
    place_ = 0;
  }
  std::uint32_t drawn = words_[place_++];
  drawn ^= drawn >> 11;
  drawn ^= (drawn << 7) & 0x9d2c5680u;
  drawn ^= (drawn << 15) & 0xefc60000u;
  return drawn ^ (drawn >> 18);
}

double Shapes::random() {
  const std::uint32_t high = word() >> 5;
  const std::uint32_t low = word() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

std::uint32_t Shapes::below(std::uint32_t count) {
  const int bits = std::bit_width(count);
  for (;;) {
    const std::uint32_t drawn = word() >> (32 - bits);
    if (drawn < count) return drawn;
  }
}

// Box and Muller's two normals, as `random.gauss` gives them.
double Shapes::normal() {
  if (has_next_normal_) {
    has_next_normal_ = false;
    return next_normal_;
  }
  const double angle = random() * two_pi;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random()));
  next_normal_ = std::sin(angle) * radius;
  has_next_normal_ = true;
  return std::cos(angle) * radius;
}

std::int64_t Shapes::tokens(const LengthRule& rule) {
  const double z = normal();
  const bool is_tail = rule.tail_slope >= 0.0 && z >= z_90;
  const double drawn = is_tail ? rule.p90 * std::exp(rule.tail_slope * (z - z_90))
                               : rule.median * std::exp(rule.slope * z);
  const double value = std::nearbyint(drawn);  // halves to even, as Python rounds
  if (value < static_cast<double>(rule.minimum)) return rule.minimum;
  if (value >= static_cast<double>(rule.maximum)) return rule.maximum;
  return static_cast<std::int64_t>(value);
}

}  // namespace headrace
