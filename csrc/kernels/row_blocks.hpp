// Walks rows in register-sized blocks whose size is a compile-time constant inside the body.
#pragma once

#include <type_traits>

namespace headrace {
namespace {

template <int count, class Body>
inline void remaining_rows(int first, int rows, Body& body) {
  if constexpr (count > 0) {
    if (rows == count) {
      body(std::integral_constant<int, count>{}, first);
    } else {
      remaining_rows<count - 1>(first, rows, body);
    }
  }
}

// Calls body(integral_constant<R>, first) for blocks of at most `block` rows, of even sizes: seven
// rows by blocks of six are 4 + 3, since a block of one row wastes most of the machine.
template <int block, class Body>
inline void for_row_blocks(int row_count, Body body) {
  int first = 0;
  for (int blocks = (row_count + block - 1) / block; blocks > 0; --blocks) {
    const int rows = (row_count - first + blocks - 1) / blocks;
    remaining_rows<block>(first, rows, body);
    first += rows;
  }
}

}  // namespace
}  // namespace headrace
