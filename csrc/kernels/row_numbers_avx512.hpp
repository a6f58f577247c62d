// Instructions of AVX-512 one of whose operands is a number of a row in memory, the same in all lanes.
// Written by hand: a compiler that is given the intrinsics loads the number into a register first (a
// quarter more instructions, and registers that rows could have) and moves the additions of many rows
// to where their products must be kept in memory. They stay in the order in which they stand.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "kernels/row_addresses.hpp"

namespace headrace {
namespace {

// body(0), body(1) .. body(count - 1), where each number is a constant.
template <int count, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, count>{});
}

// Keeps the compiler from computing in another order, for which the registers do not suffice.
inline void settle(__m512i& vector) { asm volatile("" : "+v"(vector)); }
inline void settle(__m512& vector) { asm volatile("" : "+v"(vector)); }

// The number at byte `at` from where row r begins.
#define HEADRACE_NUMBER "%c[at](%[base],%[index],%c[scale])"
#define HEADRACE_NUMBERS HEADRACE_NUMBER "%{1to16%}"
#define HEADRACE_NUMBER_OPERANDS                                                              \
  [base] "r"(rows_in.base(r)), [index] "r"(rows_in.index(r)), [scale] "i"(rows_in.scale(r)), \
      [at] "i"(at)

// dot += each column's four products of unsigned bytes and a row's signed ones.
template <int r, int at, int rows>
[[gnu::always_inline]] inline void add_products(__m512i& dot, __m512i weights,
                                                const RowAddresses<std::int8_t, rows>& rows_in) {
  asm volatile("vpdpbusd " HEADRACE_NUMBERS ", %[weights], %[dot]"
               : [dot] "+v"(dot)
               : [weights] "v"(weights), HEADRACE_NUMBER_OPERANDS);
}

// dot += each column's two products of 16-bit integers.
template <int r, int at, int rows>
[[gnu::always_inline]] inline void add_products(__m512i& dot, __m512i weights,
                                                const RowAddresses<std::int16_t, rows>& rows_in) {
  asm volatile("vpdpwssd " HEADRACE_NUMBERS ", %[weights], %[dot]"
               : [dot] "+v"(dot)
               : [weights] "v"(weights), HEADRACE_NUMBER_OPERANDS);
}

template <int r, int at, class T, int rows>
[[gnu::always_inline]] inline __m512i number_of(const RowAddresses<T, rows>& rows_in) {
  __m512i out;
  asm volatile("vpbroadcastd " HEADRACE_NUMBER ", %[out]"
               : [out] "=v"(out)
               : HEADRACE_NUMBER_OPERANDS);
  return out;
}

// The same as a float, of an integer in memory.
template <int r, int at, class T, int rows>
[[gnu::always_inline]] inline __m512 integer_of(const RowAddresses<T, rows>& rows_in) {
  __m512 out;
  asm volatile("vcvtdq2ps " HEADRACE_NUMBERS ", %[out]"
               : [out] "=v"(out)
               : HEADRACE_NUMBER_OPERANDS);
  return out;
}

template <int r, int at, class T, int rows>
[[gnu::always_inline]] inline __m512 times_number(__m512 factor,
                                                  const RowAddresses<T, rows>& rows_in) {
  __m512 out;
  asm volatile("vmulps " HEADRACE_NUMBERS ", %[factor], %[out]"
               : [out] "=v"(out)
               : [factor] "v"(factor), HEADRACE_NUMBER_OPERANDS);
  return out;
}

// sum += factor * number, rounded once.
template <int r, int at, class T, int rows>
[[gnu::always_inline]] inline void add_times_number(__m512& sum, __m512 factor,
                                                    const RowAddresses<T, rows>& rows_in) {
  asm volatile("vfmadd231ps " HEADRACE_NUMBERS ", %[factor], %[sum]"
               : [sum] "+v"(sum)
               : [factor] "v"(factor), HEADRACE_NUMBER_OPERANDS);
}

#undef HEADRACE_NUMBER
#undef HEADRACE_NUMBERS
#undef HEADRACE_NUMBER_OPERANDS

}  // namespace
}  // namespace headrace
