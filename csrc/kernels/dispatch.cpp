#include "kernels/dispatch.hpp"

#include <stdexcept>

namespace headrace {

#if defined(HEADRACE_X86)

namespace {

struct X86Features {
  // GCC's builtins also ask the operating system whether it saves the registers.
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni");
};

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
  if (__builtin_cpu_supports("f16c")) names.emplace_back("f16c");
  if (__builtin_cpu_supports("avx512f")) names.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) names.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) names.emplace_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) names.emplace_back("avx512vl");
  if (__builtin_cpu_supports("avx512vnni")) names.emplace_back("avx512_vnni");
  return names;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

const KernelTable& choose_kernels(const std::string& isa_limit) {
  if (isa_limit != "" && isa_limit != "portable" && isa_limit != "avx2" && isa_limit != "avx512")
    throw std::invalid_argument("unknown instruction set '" + isa_limit +
                                "': use portable, avx2 or avx512");
#if defined(HEADRACE_X86)
  const X86Features features;
  if (isa_limit != "portable" && features.avx2) {
    if (isa_limit != "avx2" && features.avx512) return avx512_kernels();
    return avx2_kernels();
  }
#endif
  return portable_kernels();
}

}  // namespace headrace
