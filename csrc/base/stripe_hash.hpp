// A checksum that keeps up with memory: XXH64 with seed 0 of whole 32-byte stripes, which is plain
// C++ on every machine (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
//
// It tells bytes that were damaged from those that were written, not forged ones.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace {

constexpr std::size_t stripe_bytes = 32;

class StripeHash {
 public:
  // The next bytes, a multiple of stripe_bytes.
  void add(const std::uint8_t* data, std::size_t byte_count) {
    std::array<std::uint64_t, 4> lanes = lanes_;   // in registers
    for (const std::uint8_t* end = data + byte_count; data != end; data += stripe_bytes) {
      std::uint64_t words[4];
      std::memcpy(words, data, stripe_bytes);
      for (std::size_t i = 0; i < 4; ++i) lanes[i] = mixed(lanes[i], words[i]);
    }
    lanes_ = lanes;
    byte_count_ += byte_count;
  }

  std::uint64_t value() const {
    std::uint64_t hash = prime5;
    if (byte_count_ != 0) {
      hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
             std::rotl(lanes_[3], 18);
      for (const std::uint64_t lane : lanes_) hash = (hash ^ mixed(0, lane)) * prime1 + prime4;
    }
    hash += byte_count_;
    hash = (hash ^ hash >> 33) * prime2;
    hash = (hash ^ hash >> 29) * prime3;
    return hash ^ hash >> 32;
  }

 private:
  static constexpr std::uint64_t prime1 = 11400714785074694791u;
  static constexpr std::uint64_t prime2 = 14029467366897019727u;
  static constexpr std::uint64_t prime3 = 1609587929392839161u;
  static constexpr std::uint64_t prime4 = 9650029242287828579u;
  static constexpr std::uint64_t prime5 = 2870177450012600261u;

  static std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * prime2, 31) * prime1;
  }

  std::array<std::uint64_t, 4> lanes_ = {prime1 + prime2, prime2, 0, std::uint64_t{0} - prime1};
  std::uint64_t byte_count_ = 0;
};

}  // namespace headrace
