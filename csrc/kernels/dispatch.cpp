#include "kernels/dispatch.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#if defined(HEADRACE_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(HEADRACE_ARM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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

#elif defined(HEADRACE_ARM)

namespace {

struct ArmFeatures {
#if defined(__APPLE__)
  static bool has(const char* name) {
    int value = 0;
    std::size_t size = sizeof(value);
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  }
  bool dotprod = has("hw.optional.arm.FEAT_DotProd");
  bool i8mm = has("hw.optional.arm.FEAT_I8MM");
#else
  bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  bool i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
};

}  // namespace

std::vector<std::string> cpu_features() {
  const ArmFeatures features;
  std::vector<std::string> names;
  if (features.dotprod) names.emplace_back("dotprod");
  if (features.i8mm) names.emplace_back("i8mm");
  return names;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

const KernelTable& choose_kernels(const std::string& isa_limit, int activation_bits) {
  constexpr const char* limits[] = {"", "portable", "avx2", "avx512", "dotprod", "i8mm"};
  if (std::find(std::begin(limits), std::end(limits), isa_limit) == std::end(limits))
    throw std::invalid_argument("unknown instruction set '" + isa_limit +
                                "': use portable, avx2, avx512, dotprod or i8mm");
  if (activation_bits != 16 && activation_bits != 8)
    throw std::invalid_argument("activations have 16 or 8 bits");
#if defined(HEADRACE_X86)
  const X86Features features;
  if (features.avx512 && (isa_limit == "" || isa_limit == "avx512")) return avx512_kernels(activation_bits);
  if (features.avx2 && (isa_limit == "" || isa_limit == "avx512" || isa_limit == "avx2"))
    return avx2_kernels(activation_bits);
#elif defined(HEADRACE_ARM)
  const ArmFeatures features;
  if (features.i8mm && (isa_limit == "" || isa_limit == "i8mm")) return i8mm_kernels(activation_bits);
  if (features.dotprod && (isa_limit == "" || isa_limit == "i8mm" || isa_limit == "dotprod"))
    return dotprod_kernels(activation_bits);
#endif
  return portable_kernels(activation_bits);
}

}  // namespace headrace
