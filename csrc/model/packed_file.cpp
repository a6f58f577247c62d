#include "model/packed_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/errors.hpp"
#include "kernels/kernel_table.hpp"

namespace headrace {

namespace {

constexpr int layout_version = 2;
constexpr std::size_t header_bytes = 64;
constexpr std::size_t read_bytes = std::size_t{1} << 18;   // at once, which a core's cache holds

struct Header {
  char magic[8] = {'h', 'r', 'p', 'a', 'c', 'k', '\0', '\0'};
  char layout[32] = {};
  std::uint64_t size = 0;
};

struct Entry {
  std::uint64_t key;
  std::uint64_t byte_count;
  std::uint64_t checksum;   // of the tiles
};

constexpr std::size_t entry_name_bytes = offsetof(Entry, checksum);   // what says which matrix it is

static_assert(sizeof(Header) <= header_bytes && sizeof(Entry) <= header_bytes);

// FNV-1a of what a matrix is: that a file's digest is in its path says the rest.
std::uint64_t key_of(const RawTensor& raw) {
  const std::string text = raw.name + "\n" + std::to_string(raw.ggml_type) + " " +
                           std::to_string(raw.outputs) + " " + std::to_string(raw.inputs);
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 1099511628211u;
  return hash;
}

Header header_of(std::size_t size) {
  Header header;
  const std::string layout = packed_layout();
  std::memcpy(header.layout, layout.data(), std::min(layout.size(), sizeof(header.layout) - 1));
  header.size = size;
  return header;
}

std::uint8_t* map_file(int descriptor, std::size_t size, int protection) {
  void* data = mmap(nullptr, size, protection, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
  madvise(data, size, MADV_HUGEPAGE);   // where the file system has them; a hint only
#endif
  return static_cast<std::uint8_t*>(data);
}

bool reserve(int descriptor, std::size_t size) {
#if defined(__linux__)   // a page that the disk cannot take would end the process
  return posix_fallocate(descriptor, 0, static_cast<off_t>(size)) == 0;
#else
  return ftruncate(descriptor, static_cast<off_t>(size)) == 0;
#endif
}

}  // namespace

std::string packed_layout() {
  return (inputs_in_pairs ? "pairs-" : "fours-") + std::to_string(layout_version);
}

std::size_t PackedFile::entry_bytes(std::size_t matrix_bytes) {
  return header_bytes + round_up(matrix_bytes, cache_line_bytes);
}

PackedFile::PackedFile(std::string path, int descriptor, std::uint8_t* data, std::size_t size,
                       bool is_new)
    : path_(std::move(path)),
      descriptor_(descriptor),
      data_(data),
      size_(size),
      is_new_(is_new),
      used_(header_bytes),
      checked_(header_bytes) {}

std::unique_ptr<PackedFile> PackedFile::open(const std::string& path) {
  // Not to be held up by a pipe, which waits for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return nullptr;
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  if (known && !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw ModelFileError(path +
                         ", where packed weights are kept, is not a regular file: remove it");
  }
  flock(descriptor, LOCK_SH | LOCK_NB);   // says that it is in use, as long as it is open
  const std::size_t size = known ? static_cast<std::size_t>(status.st_size) : 0;
  std::uint8_t* data = size < header_bytes ? nullptr : map_file(descriptor, size, PROT_READ);
  if (data == nullptr) {
    ::close(descriptor);
    return nullptr;
  }
  std::unique_ptr<PackedFile> file(new PackedFile(path, descriptor, data, size, false));
  const Header expected = header_of(size);
  if (std::memcmp(data, &expected, sizeof(Header)) != 0) return nullptr;
  madvise(data, size, MADV_WILLNEED);
  return file;
}

std::unique_ptr<PackedFile> PackedFile::create(const std::string& path, std::size_t byte_count) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  const int descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  flock(descriptor, LOCK_EX | LOCK_NB);   // says that a process is at work on it
  const std::size_t size = header_bytes + byte_count;
  std::uint8_t* data =
      reserve(descriptor, size) ? map_file(descriptor, size, PROT_READ | PROT_WRITE) : nullptr;
  if (data == nullptr) {
    ::unlink(temporary.c_str());
    ::close(descriptor);
    return nullptr;
  }
  std::unique_ptr<PackedFile> file(new PackedFile(path, descriptor, data, size, true));
  file->temporary_path_ = temporary;
  return file;
}

PackedFile::~PackedFile() {
  if (publishing_.joinable()) publishing_.join();
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  munmap(data_, size_);
  ::close(descriptor_);
}

std::uint8_t* PackedFile::take(const RawTensor& raw, std::size_t byte_count) {
  const Entry entry{key_of(raw), byte_count, 0};
  const std::size_t end = used_ + entry_bytes(byte_count);
  if (end > size_) throw StalePackedFile{};
  std::uint8_t* at = data_ + used_;
  if (is_new_) {
    std::memcpy(at, &entry, sizeof(Entry));
  } else if (std::memcmp(at, &entry, entry_name_bytes) != 0) {
    throw StalePackedFile{};
  }
  used_ = end;
  return at + header_bytes;
}

void PackedFile::publish() {
  const Header header = header_of(used_);
  std::memcpy(data_, &header, sizeof(Header));
  mprotect(data_, size_, PROT_READ);
  flock(descriptor_, LOCK_SH | LOCK_NB);   // for others to map it too
  const bool cut = ftruncate(descriptor_, static_cast<off_t>(used_)) == 0;
  std::string temporary = std::move(temporary_path_);
  temporary_path_.clear();
  publishing_ = std::thread([this, cut, temporary = std::move(temporary)] {
    const bool whole = cut && seal() && fsync(descriptor_) == 0 &&
                       std::rename(temporary.c_str(), path_.c_str()) == 0;
    if (!whole) ::unlink(temporary.c_str());
  });
}

// Writes the checksums, past the mapping, which is read only by now.
bool PackedFile::seal() {
  for (std::size_t at = header_bytes; at < used_;) {
    Entry entry;
    std::memcpy(&entry, data_ + at, sizeof(Entry));
    StripeHash hash;
    hash.add(data_ + at + header_bytes, entry.byte_count);
    const std::uint64_t checksum = hash.value();
    const off_t place = static_cast<off_t>(at + entry_name_bytes);
    if (pwrite(descriptor_, &checksum, sizeof(checksum), place) != sizeof(checksum)) return false;
    at += entry_bytes(entry.byte_count);
  }
  return true;
}

PackedCheck PackedFile::check_next(std::size_t byte_count) {
  if (is_new_) return PackedCheck::sound;
  std::vector<std::uint8_t> chunk(read_bytes);
  for (std::size_t done = 0; done < byte_count;) {
    if (checked_left_ == 0 && checked_ == used_) return PackedCheck::sound;
    const std::size_t count = std::min(chunk.size(), checked_left_);
    const bool holds = count == 0 ? enter_entry() : check_tiles(chunk.data(), count);
    if (!holds) {
      remove_if_mine();
      return PackedCheck::damaged;
    }
    done += count;
  }
  return PackedCheck::more;
}

bool PackedFile::enter_entry() {
  Entry entry;
  if (!read_at(checked_, reinterpret_cast<std::uint8_t*>(&entry), sizeof(Entry))) return false;
  checked_ += header_bytes;
  checked_left_ = entry.byte_count;
  checked_hash_ = {};
  expected_hash_ = entry.checksum;
  return checked_ <= used_ && checked_left_ <= used_ - checked_;
}

bool PackedFile::check_tiles(std::uint8_t* chunk, std::size_t byte_count) {
  if (!read_at(checked_, chunk, byte_count)) return false;
  checked_hash_.add(chunk, byte_count);
  checked_ += byte_count;
  checked_left_ -= byte_count;
  return checked_left_ > 0 || checked_hash_.value() == expected_hash_;
}

// Not through the mapping: a page that the disk cannot give any more would end the process.
bool PackedFile::read_at(std::size_t offset, std::uint8_t* out, std::size_t byte_count) const {
  while (byte_count > 0) {
    const ssize_t count = pread(descriptor_, out, byte_count, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    out += count;
    offset += static_cast<std::size_t>(count);
    byte_count -= static_cast<std::size_t>(count);
  }
  return true;
}

// Another process may have put a whole file in this one's place.
void PackedFile::remove_if_mine() const {
  struct stat mine {}, there {};
  if (fstat(descriptor_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
      mine.st_dev == there.st_dev && mine.st_ino == there.st_ino)
    ::unlink(path_.c_str());
}

}  // namespace headrace
