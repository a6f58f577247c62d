#include "kernels/dispatch.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#if defined(HEADRACE_X86)
#include <cpuid.h>
#elif defined(HEADRACE_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(HEADRACE_ARM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headrace {

#if defined(HEADRACE_X86)

namespace {

// Not every compiler's builtin knows its name. What saves AVX2's registers saves those it uses.
bool has_avxvnni() {
  constexpr unsigned int avxvnni_bit = 1u << 4;   // of leaf 7, subleaf 1
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & avxvnni_bit) != 0;
}

struct X86Features {
  // GCC's builtins also ask the operating system whether it saves the registers.
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni");
  bool avxvnni = avx2 && has_avxvnni();
  // Zen 4 adds 512 bits on all of its pipes and multiplies on half of them; Intel does both on two.
  bool sums = __builtin_cpu_is("amd");
};

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
  if (__builtin_cpu_supports("f16c")) names.emplace_back("f16c");
#if defined(HEADRACE_AVXVNNI)
  if (X86Features().avxvnni) names.emplace_back("avx_vnni");
#endif
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

namespace {

struct Candidate {
  const char* name;
  bool runs;   // on this CPU
  const KernelTable& (*kernels)(int activation_bits);
};

// From the best to the least; the portable kernels run where none of them does.
std::vector<Candidate> candidates() {
#if defined(HEADRACE_X86)
  const X86Features features;
  return {{"avx512", features.avx512, features.sums ? avx512_sums_kernels : avx512_products_kernels},
          {"avx512-products", features.avx512, avx512_products_kernels},
          {"avx512-sums", features.avx512, avx512_sums_kernels},
#if defined(HEADRACE_AVXVNNI)
          {"avxvnni", features.avxvnni, avxvnni_kernels},
#else   // the compiler does not know its instructions
          {"avxvnni", features.avx2, avx2_kernels},
#endif
          {"avx2", features.avx2, avx2_kernels}};
#elif defined(HEADRACE_ARM)
  const ArmFeatures features;
  return {{"i8mm", features.i8mm, i8mm_kernels}, {"dotprod", features.dotprod, dotprod_kernels}};
#else
  return {};
#endif
}

}  // namespace

const KernelTable& choose_kernels(const std::string& isa_limit, int activation_bits) {
  constexpr const char* limits[] = {"", "portable", "avx2", "avxvnni", "avx512", "avx512-products",
                                    "avx512-sums", "dotprod", "i8mm"};
  if (std::find(std::begin(limits), std::end(limits), isa_limit) == std::end(limits))
    throw std::invalid_argument("unknown instruction set '" + isa_limit +
                                "': use portable, avx2, avxvnni, avx512, dotprod or i8mm");
  if (activation_bits != 16 && activation_bits != 8)
    throw std::invalid_argument("activations have 16 or 8 bits");
  bool allowed = isa_limit.empty();
  for (const Candidate& candidate : candidates()) {
    allowed = allowed || isa_limit == candidate.name;
    if (allowed && candidate.runs) return candidate.kernels(activation_bits);
  }
  return portable_kernels(activation_bits);
}

}  // namespace headrace
