// Packed matrices in a file of their own, mapped: a second load packs nothing, and the processes of
// a machine share one copy of the weights. One load writes it: straight into the mapped file, which
// takes its name only when all of it is on the disk.
//
//   header   64 bytes: magic, layout, size
//   entry    for each matrix, in the order of loading: 64 bytes (key, size, checksum), then its tiles
//
// Only kernels of the same layout read it (packed_layout); a key says which matrix an entry is. What a
// load compares is the header and the entries' beginnings, so that it reads no tiles; whether these
// are as they were written is checked beside the steps (check_next).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/stripe_hash.hpp"
#include "model/raw_tensor.hpp"

namespace headrace {

// Names how this build lays out packed matrices. Another number for any change of tile_layout.hpp or
// of what file_blocks.cpp makes of a file's blocks.
std::string packed_layout();

// What the file holds is not what is asked of it: pack anew.
struct StalePackedFile {};

enum class PackedCheck { more, sound, damaged };

class PackedFile {
 public:
  // What an earlier load left at `path`; null if nothing is there, or not of this layout.
  // ModelFileError if what is there is no regular file.
  static std::unique_ptr<PackedFile> open(const std::string& path);
  // A new file that will be at `path`; null if the disk has no room for so many bytes of matrices.
  static std::unique_ptr<PackedFile> create(const std::string& path, std::size_t byte_count);

  ~PackedFile();   // waits until a published file is on the disk
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  static std::size_t entry_bytes(std::size_t matrix_bytes);

  bool is_new() const { return is_new_; }

  // Where the next matrix is, or is to be written; StalePackedFile if it is another one.
  std::uint8_t* take(const RawTensor& raw, std::size_t byte_count);

  // A new file is whole: read only from now on, and in its place as soon as the disk has it.
  void publish();

  // Reads on in the file, `byte_count` bytes or a little more, and compares what it has read of a
  // matrix with the checksum of what was packed. A damaged file is removed, so that the next load
  // packs anew. For one thread, whatever others do with the matrices; a new file is sound.
  PackedCheck check_next(std::size_t byte_count);

 private:
  PackedFile(std::string path, int descriptor, std::uint8_t* data, std::size_t size, bool is_new);

  bool seal();
  bool enter_entry();
  bool check_tiles(std::uint8_t* chunk, std::size_t byte_count);
  bool read_at(std::size_t offset, std::uint8_t* out, std::size_t byte_count) const;
  void remove_if_mine() const;

  std::string path_;
  int descriptor_;
  std::uint8_t* data_;
  std::size_t size_;
  bool is_new_;
  std::size_t used_;
  std::string temporary_path_;   // of a new file until it is published
  std::thread publishing_;
  std::size_t checked_;          // how far check_next has come, and
  StripeHash checked_hash_;      // what it has of the entry that it is in
  std::size_t checked_left_ = 0; // whose tiles have so many bytes to come
  std::uint64_t expected_hash_ = 0;
};

}  // namespace headrace
