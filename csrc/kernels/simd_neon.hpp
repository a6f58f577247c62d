// Four float lanes with NEON; same vocabulary as simd_portable.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/kernel_table.hpp"

namespace headrace {
namespace {

struct SimdNeon {
  using V = float32x4_t;
  static constexpr int width = 4;
  static constexpr int rows = 6;

  static inline V set1(float x) { return vdupq_n_f32(x); }
  static inline V load(const float* p) { return vld1q_f32(p); }
  static inline void store(float* p, V v) { vst1q_f32(p, v); }
  static inline V load_f16(const std::uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
  }
  static inline V load_bf16(const std::uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static inline V load_i8(const std::int8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, 4);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }
  static inline void store_i8(std::int8_t* p, V v) {
    const int16x4_t shorts = vmovn_s32(vcvtnq_s32_f32(v));
    const int8x8_t bytes = vmovn_s16(vcombine_s16(shorts, shorts));
    vst1_lane_s32(reinterpret_cast<std::int32_t*>(p), vreinterpret_s32_s8(bytes), 0);
  }
  static inline void store_f16(std::uint16_t* p, V v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  }
  static inline V add(V a, V b) { return vaddq_f32(a, b); }
  static inline V sub(V a, V b) { return vsubq_f32(a, b); }
  static inline V mul(V a, V b) { return vmulq_f32(a, b); }
  static inline V div(V a, V b) { return vdivq_f32(a, b); }
  static inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  // NEON's own maximum is NaN where either is; this vocabulary's is `b` then.
  static inline V max(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static inline V min(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static inline V abs(V a) { return vabsq_f32(a); }
  static inline V scale_by_power(V a, V shifted) {
    const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), power));
  }
  static inline V twice_each(const float* p) {   // p[0], p[0], p[1], p[1]
    const float32x2_t two = vld1_f32(p);
    return vcombine_f32(vdup_lane_f32(two, 0), vdup_lane_f32(two, 1));
  }
  static inline V turn_pairs(V a, const float* cosine, const float* sine) {
    const V crossed = vmulq_f32(vrev64q_f32(a), twice_each(sine));
    const uint32x4_t first = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));   // the sign of x's lane
    return vaddq_f32(vmulq_f32(a, twice_each(cosine)),
                     vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(crossed), first)));
  }
  static inline float reduce_add(V a) { return vaddvq_f32(a); }
  static inline float reduce_max(V a) {   // NaN lanes do not win, as with max()
    float lanes[4];
    vst1q_f32(lanes, a);
    float out = lanes[0];
    for (int i = 1; i < 4; ++i) out = lanes[i] > out ? lanes[i] : out;
    return out;
  }
  static inline double reduce_add_double(V a) {
    return vaddvq_f64(vaddq_f64(vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)));
  }
  static inline float group_peak(const float* x) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < group_values; i += width)
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    const std::uint32_t bits = vmaxvq_u32(largest);
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
  }
  // Sixteen inputs as 8 low and 8 high bytes, twice (matmul_integer_neon.hpp); their sum.
  static inline std::int32_t quantize_half(const float* x, float32x4_t factor, std::int8_t* out) {
    std::int32_t sum = 0;
    for (int first = 0; first < 16; first += 8) {
      const int32x4_t a = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + first), factor));
      const int32x4_t b = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + first + 4), factor));
      const int16x8_t whole = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
      vst1_s8(out + 2 * first, vmovn_s16(whole));
      vst1_s8(out + 2 * first + 8, vrshrn_n_s16(whole, 8));
      sum += vaddvq_s32(vaddq_s32(a, b));
    }
    return sum;
  }
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int16_t* out) {
    const float32x4_t factor = vdupq_n_f32(inverse);
    std::int8_t* bytes = reinterpret_cast<std::int8_t*>(out);
    const std::int32_t first = quantize_half(x, factor, bytes);
    return {first, quantize_half(x + 16, factor, bytes + 32)};
  }
  static inline int16x8_t rounded_eight(const float* x, float32x4_t factor) {
    return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), factor))),
                        vmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + 4), factor))));
  }
  static inline std::pair<std::int32_t, std::int32_t> quantize_group(const float* x, float inverse,
                                                                     std::int8_t* out) {
    const float32x4_t factor = vdupq_n_f32(inverse);
    std::int32_t sums[2];
    for (int half = 0; half < 2; ++half, x += 16, out += 16) {
      const int8x16_t bytes = vcombine_s8(vmovn_s16(rounded_eight(x, factor)),
                                          vmovn_s16(rounded_eight(x + 8, factor)));
      vst1q_s8(out, bytes);
      sums[half] = vaddlvq_s8(bytes);
    }
    return {sums[0], sums[1]};
  }
};

}  // namespace
}  // namespace headrace
