#include "kernels/machine_probe.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include "base/buffer.hpp"
#include "base/thread_team.hpp"
#include "kernels/tile_layout.hpp"

namespace headrace {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int probe_inputs = 512;
constexpr int probe_rows = 16;
constexpr int probe_calls = 2000;
constexpr std::size_t probe_lanes = 16;   // numbers of two cache lines, added side by side

// The sum of `count` numbers. `ahead` asks for lines as the kernels do; which of both reads faster
// depends on how far the machine looks ahead by itself.
template <bool ahead>
std::uint64_t sum_of(const std::uint64_t* data, std::size_t count) {
  std::uint64_t lanes[probe_lanes] = {};
  for (std::size_t i = 0; i + probe_lanes <= count; i += probe_lanes) {
    if constexpr (ahead)
      prefetch_group(reinterpret_cast<const std::uint8_t*>(data + i),
                     probe_lanes * sizeof(std::uint64_t));
    for (std::size_t lane = 0; lane < probe_lanes; ++lane) lanes[lane] += data[i + lane];
  }
  return std::accumulate(lanes, lanes + probe_lanes, std::uint64_t{0});
}

}  // namespace

double measure_read_bandwidth(int thread_count, std::size_t byte_count, int repeats) {
  const std::size_t count = std::max<std::size_t>(byte_count / sizeof(std::uint64_t), 1024);
  Buffer<std::uint64_t> data(count);
  std::fill_n(data.data(), count, 1);   // untouched pages are all one page of zeros, in a cache
  ThreadTeam team(thread_count);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(thread_count) * 8);
  const int slices = 64 * thread_count;
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    team.run([&](Member& member) {
      member.share(slices, 1, [&](int first, int end) {
        const std::size_t begin = count * static_cast<std::size_t>(first) / slices;
        const std::size_t stop = count * static_cast<std::size_t>(end) / slices;
        sums[static_cast<std::size_t>(member.index()) * 8] +=
            repeat % 2 == 0 ? sum_of<false>(data.data() + begin, stop - begin)
                            : sum_of<true>(data.data() + begin, stop - begin);
      });
    });
    best = std::min(best, seconds_since(start));
  }
  // Of ones the sum is what was read; only someone who read it knows.
  const std::uint64_t read = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  return static_cast<double>(read / repeats * sizeof(std::uint64_t)) / best;
}

double measure_matrix_rate(const KernelTable& kernels, int thread_count, int repeats) {
  const std::size_t groups = probe_inputs / group_values;
  Buffer<std::uint8_t> tile(tile_bytes(WeightType::q4_0, probe_inputs));
  Buffer<std::int16_t> values(probe_rows * probe_inputs);
  Buffer<std::int8_t> bytes(probe_rows * probe_inputs);
  Buffer<GroupScale> scales(probe_rows * groups);
  Buffer<float> out(static_cast<std::size_t>(thread_count) * probe_rows * tile_columns);
  ActivationRows input;
  input.values = values.data();
  input.scales = scales.data();
  input.inputs = probe_inputs;
  input.bytes = bytes.data();
  input.byte_scales = scales.data();
  const MatmulTile matmul = kernels.matmul[static_cast<int>(WeightType::q4_0)];
  ThreadTeam team(thread_count);
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    team.run([&](Member& member) {
      float* mine = out.data() + static_cast<std::size_t>(member.index()) * probe_rows * tile_columns;
      member.share(probe_calls * thread_count, probe_calls / 10, [&](int first, int end) {
        for (int call = first; call < end; ++call)
          matmul(tile.data(), input, 0, probe_rows, {mine, tile_columns, nullptr, false});
      });
    });
    best = std::min(best, seconds_since(start));
  }
  const double operations = 2.0 * probe_rows * probe_inputs * tile_columns * probe_calls;
  return operations * thread_count / best;
}

}  // namespace headrace
