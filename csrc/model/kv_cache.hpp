// The paged KV cache: per layer and block, for each kv head, 16 tokens of keys, then of values.
//
// Keys lie transposed, (head_dim, 16): the scores of a block's tokens come out side by side without
// a horizontal sum. Values lie as (16, head_dim).
#pragma once

#include <cstdint>
#include <cstring>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

class KvCache {
 public:
  KvCache(int num_layers, int num_kv_heads, int head_dim, int num_blocks)
      : num_layers_(num_layers),
        num_blocks_(num_blocks),
        head_dim_(head_dim),
        head_halves_(static_cast<std::size_t>(head_dim) * block_tokens),
        block_halves_(2 * head_halves_ * static_cast<std::size_t>(num_kv_heads)),
        data_(block_halves_ * static_cast<std::size_t>(num_blocks) *
              static_cast<std::size_t>(num_layers)) {}

  int num_blocks() const { return num_blocks_; }
  std::size_t block_stride() const { return block_halves_; }   // in halves
  std::size_t byte_count() const { return data_.size() * sizeof(std::uint16_t); }

  std::uint16_t* keys(int layer, int kv_head) {
    return block(layer, 0) + static_cast<std::size_t>(kv_head) * 2 * head_halves_;
  }
  std::uint16_t* values(int layer, int kv_head) { return keys(layer, kv_head) + head_halves_; }

  // Puts one token's key and value, (head_dim,) each, into its slot.
  void write(int layer, int kv_head, int block_id, int slot, const std::uint16_t* key,
             const std::uint16_t* value) {
    const std::size_t base = static_cast<std::size_t>(block_id) * block_halves_;
    std::uint16_t* key_slot = keys(layer, kv_head) + base + slot;
    for (int d = 0; d < head_dim_; ++d) key_slot[d * block_tokens] = key[d];
    std::memcpy(values(layer, kv_head) + base + slot * head_dim_, value,
                static_cast<std::size_t>(head_dim_) * sizeof(std::uint16_t));
  }

  void copy_block(int source, int destination) {
    if (source == destination) return;
    for (int layer = 0; layer < num_layers_; ++layer)
      std::memcpy(block(layer, destination), block(layer, source), block_bytes());
  }

  std::size_t export_bytes() const { return block_bytes() * static_cast<std::size_t>(num_layers_); }

  void export_block(int block_id, std::uint8_t* out) {
    for (int layer = 0; layer < num_layers_; ++layer, out += block_bytes())
      std::memcpy(out, block(layer, block_id), block_bytes());
  }

  void import_block(int block_id, const std::uint8_t* in) {
    for (int layer = 0; layer < num_layers_; ++layer, in += block_bytes())
      std::memcpy(block(layer, block_id), in, block_bytes());
  }

 private:
  std::size_t block_bytes() const { return block_halves_ * sizeof(std::uint16_t); }
  std::uint16_t* block(int layer, int block_id) {
    return data_.data() + block_halves_ * (static_cast<std::size_t>(layer) *
                                               static_cast<std::size_t>(num_blocks_) +
                                           static_cast<std::size_t>(block_id));
  }

  int num_layers_;
  int num_blocks_;
  int head_dim_;
  std::size_t head_halves_;
  std::size_t block_halves_;
  Buffer<std::uint16_t> data_;
};

}  // namespace headrace
