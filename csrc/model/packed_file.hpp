// Packed matrices in a file of their own, mapped: a second load packs nothing, and the processes of
// a machine share one copy of the weights. One load writes it: straight into the mapped file, which
// takes its name only when all of it is on the disk.
//
//   header   64 bytes: magic, layout, size
//   entry    for each matrix, in the order of loading: 64 bytes (key, size), then its tiles
//
// Only kernels of the same layout read it (packed_layout); a key says which matrix an entry is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "model/raw_tensor.hpp"

namespace headrace {

// Names how this build lays out packed matrices. Another number for any change of tile_layout.hpp or
// of what file_blocks.cpp makes of a file's blocks.
std::string packed_layout();

// What the file holds is not what is asked of it: pack anew.
struct StalePackedFile {};

class PackedFile {
 public:
  // What an earlier load left at `path`; null if nothing is there, or not of this layout.
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

 private:
  PackedFile(int descriptor, std::uint8_t* data, std::size_t size, bool is_new);

  int descriptor_;
  std::uint8_t* data_;
  std::size_t size_;
  bool is_new_;
  std::size_t used_;
  std::string temporary_path_;   // of a new file until it is published
  std::string path_;
  std::thread publishing_;
};

}  // namespace headrace
