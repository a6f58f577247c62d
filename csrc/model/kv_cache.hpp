// The paged KV cache: per layer and block, for each kv head, 16 tokens of keys, then of values.
//
// Keys lie transposed, (head_dim, 16): the scores of a block's tokens come out side by side without
// a horizontal sum. Values lie as (16, head_dim). As int8 (KvType::q8), each token and head has its
// own scales, 16 of keys and 16 of values after the values: what is stored of a token depends on
// nothing but the token.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/buffer.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

// Which heads of an exported block, of `count` in each layer, a cache has: those of a rank.
struct HeadPlace {
  int first;
  int count;
};

class KvCache {
 public:
  KvCache(int num_layers, int num_kv_heads, int head_dim, int num_blocks, KvType type)
      : num_layers_(num_layers),
        num_blocks_(num_blocks),
        head_dim_(head_dim),
        type_(type),
        part_halves_(part_halves(head_dim, type)),
        head_halves_(head_halves(head_dim, type)),
        block_halves_(head_halves_ * static_cast<std::size_t>(num_kv_heads)),
        data_(block_halves_ * static_cast<std::size_t>(num_blocks) *
              static_cast<std::size_t>(num_layers)) {}

  int num_blocks() const { return num_blocks_; }
  KvType type() const { return type_; }
  std::size_t block_stride() const { return block_halves_; }   // in halves
  std::size_t byte_count() const { return data_.size() * sizeof(std::uint16_t); }
  void discard() { data_.discard(); }   // every block's content, and its memory

  // Where the tile of one layer and kv head reads; AttentionTile says what lies there.
  void place(AttentionTile& tile, int layer, int kv_head) {
    tile.keys = head(layer, kv_head, 0);
    tile.values = tile.keys + part_halves_;
    tile.scales = type_ == KvType::q8 ? tile.values + part_halves_ : nullptr;
    tile.block_stride = block_halves_;
  }

  // Puts one token's key and value, (head_dim,) each, into its slot.
  void write(const KernelTable& kernels, int layer, int kv_head, int block_id, int slot,
             const float* key, const float* value) {
    std::uint16_t* base = head(layer, kv_head, block_id);
    if (type_ == KvType::f16) {
      std::uint16_t row[head_dim_max];
      kernels.to_half(key, head_dim_, row);
      for (int d = 0; d < head_dim_; ++d) base[d * block_tokens + slot] = row[d];
      kernels.to_half(value, head_dim_, base + part_halves_ + slot * head_dim_);
      return;
    }
    auto* keys = reinterpret_cast<std::int8_t*>(base);
    auto* values = reinterpret_cast<std::int8_t*>(base + part_halves_);
    auto* scales = reinterpret_cast<float*>(base + 2 * part_halves_);
    std::int8_t row[head_dim_max];
    scales[slot] = kernels.to_bytes(key, head_dim_, row);
    for (int d = 0; d < head_dim_; ++d) keys[d * block_tokens + slot] = row[d];
    scales[block_tokens + slot] = kernels.to_bytes(value, head_dim_, values + slot * head_dim_);
  }

  void copy_block(int source, int destination) {
    if (source == destination) return;
    for (int layer = 0; layer < num_layers_; ++layer)
      std::memcpy(block(layer, destination), block(layer, source), block_bytes());
  }

  // What a block of so many kv heads takes outside: layer by layer, all heads of each.
  static std::size_t export_bytes(int num_layers, int num_kv_heads, int head_dim, KvType type) {
    return head_halves(head_dim, type) * sizeof(std::uint16_t) *
           static_cast<std::size_t>(num_kv_heads) * static_cast<std::size_t>(num_layers);
  }

  void export_block(int block_id, const HeadPlace& heads, std::uint8_t* out) {
    for (int layer = 0; layer < num_layers_; ++layer)
      std::memcpy(out + exported_at(layer, heads), block(layer, block_id), block_bytes());
  }

  void import_block(int block_id, const HeadPlace& heads, const std::uint8_t* in) {
    for (int layer = 0; layer < num_layers_; ++layer)
      std::memcpy(block(layer, block_id), in + exported_at(layer, heads), block_bytes());
  }

 private:
  static std::size_t part_halves(int head_dim, KvType type) {
    return static_cast<std::size_t>(head_dim) * block_tokens / (type == KvType::q8 ? 2 : 1);
  }
  static std::size_t head_halves(int head_dim, KvType type) {
    return 2 * part_halves(head_dim, type) + (type == KvType::q8 ? 4 * block_tokens : 0);
  }
  std::size_t block_bytes() const { return block_halves_ * sizeof(std::uint16_t); }
  std::size_t exported_at(int layer, const HeadPlace& heads) const {
    return head_halves_ * sizeof(std::uint16_t) *
           (static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads.count) +
            static_cast<std::size_t>(heads.first));
  }
  std::uint16_t* block(int layer, int block_id) {
    return data_.data() + block_halves_ * (static_cast<std::size_t>(layer) *
                                               static_cast<std::size_t>(num_blocks_) +
                                           static_cast<std::size_t>(block_id));
  }
  std::uint16_t* head(int layer, int kv_head, int block_id) {
    return block(layer, block_id) + static_cast<std::size_t>(kv_head) * head_halves_;
  }

  int num_layers_;
  int num_blocks_;
  int head_dim_;
  KvType type_;
  std::size_t part_halves_;    // a head's keys (or values) of a block
  std::size_t head_halves_;
  std::size_t block_halves_;
  Buffer<std::uint16_t> data_;
};

}  // namespace headrace
