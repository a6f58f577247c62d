// How fast do threads read memory? A plain AVX2 sum over 512 MiB of huge pages, each thread its part.
//
//   g++ -O3 -mavx2 -pthread bench/memory_read.cpp -o /tmp/memory_read && /tmp/memory_read [THREADS]
//
// Beside `bench/kernels.py --case "decode 1"`, whose own probe reads less than a decode step does.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

constexpr std::size_t bytes = std::size_t{512} << 20;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr int repeats = 8;

std::int64_t sum_of(const char* data, std::size_t count) {
  __m256i lanes[4] = {};
  for (std::size_t i = 0; i + 128 <= count; i += 128)
    for (std::size_t j = 0; j < 4; ++j)
      lanes[j] = _mm256_add_epi64(
          lanes[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
  std::int64_t parts[16];
  std::memcpy(parts, lanes, sizeof(parts));
  std::int64_t total = 0;
  for (const std::int64_t part : parts) total += part;
  return total;
}

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::max(1, std::atoi(arguments[1])) : 2;
  char* data = static_cast<char*>(std::aligned_alloc(huge_page_bytes, bytes));
  madvise(data, bytes, MADV_HUGEPAGE);
  std::memset(data, 1, bytes);   // untouched pages are one page of zeros
  std::vector<std::int64_t> sums(static_cast<std::size_t>(threads) * 8);
  double best_s = 1e9;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t)
      team.emplace_back([&, t] { sums[t * 8] = sum_of(data + t * (bytes / threads), bytes / threads); });
    for (std::thread& thread : team) thread.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best_s = std::min(best_s, taken.count());
  }
  std::printf("%.1f GB/s by %d threads (sum %lld)\n", bytes / best_s / 1e9, threads,
              static_cast<long long>(sums[0]));
  std::free(data);
}
