#include "binding/model_arguments.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "binding/arrays.hpp"

namespace nb = nanobind;

namespace headrace {

namespace {

// A choice by its name in headrace.kernels.architecture.
template <class Choice>
Choice choice_of(const std::string& name,
                 std::initializer_list<std::pair<const char*, Choice>> choices) {
  for (const auto& [known, choice] : choices)
    if (name == known) return choice;
  throw ModelFileError("the architecture has an unknown choice: " + name);
}

}  // namespace

RawTensor raw_tensor(const std::string& name, const nb::tuple& fields) {
  if (fields.size() != 3) throw nb::value_error("a tensor is (type, shape, data)");
  const auto shape = nb::cast<std::vector<int>>(fields[1]);
  RawTensor raw;
  raw.name = name;
  raw.ggml_type = nb::cast<int>(fields[0]);
  if (shape.size() == 1 || shape.size() == 2) {
    raw.outputs = shape.size() == 2 ? shape[0] : 1;
    raw.inputs = shape.back();
  }
  if (nb::isinstance<nb::callable>(fields[2])) {
    raw.make = [source = nb::object(fields[2])] {
      const auto made = nb::cast<Vector<std::uint8_t>>(source());
      return RawBytes{{made.data(), [made](const std::uint8_t*) {}}, made.size()};
    };
    return raw;
  }
  const auto data = nb::cast<Vector<std::uint8_t>>(fields[2]);
  raw.data = data.data();
  raw.byte_count = data.size();
  return raw;
}

std::map<std::string, RawTensor> raw_tensors(const nb::dict& tensors) {
  std::map<std::string, RawTensor> out;
  for (const auto& [key, value] : tensors) {
    RawTensor raw = raw_tensor(nb::cast<std::string>(key), nb::cast<nb::tuple>(value));
    out.emplace(raw.name, raw);
  }
  return out;
}

ModelShape shape_of(const nb::object& spec) {
  const auto integer = [&](const char* name) { return nb::cast<int>(spec.attr(name)); };
  const auto number = [&](const char* name) { return nb::cast<float>(spec.attr(name)); };
  const auto flag = [&](const char* name) { return nb::cast<bool>(spec.attr(name)); };
  const auto name_of = [&](const char* name) {
    return nb::cast<std::string>(nb::str(nb::object(spec.attr(name))));
  };
  ModelShape shape;
  shape.num_layers = integer("num_layers");
  shape.hidden_size = integer("hidden_size");
  shape.num_heads = integer("num_heads");
  shape.num_kv_heads = integer("num_kv_heads");
  shape.head_dim = integer("head_dim");
  shape.ffn_size = integer("ffn_size");
  shape.vocab_size = integer("vocab_size");
  shape.context_length = integer("context_length");
  shape.norm_epsilon = number("norm_epsilon");
  shape.rope_adjacent = name_of("rope_style") == "adjacent";
  shape.rope_dimensions = integer("rope_dimensions");
  shape.tied_output = flag("tied_output");
  shape.norm_placement = choice_of<NormPlacement>(
      name_of("norm_placement"), {{"before", NormPlacement::before}, {"both", NormPlacement::both},
                                  {"branch", NormPlacement::branch}, {"after", NormPlacement::after}});
  shape.layer_norm = flag("layer_norm");
  shape.query_key_norm = choice_of<QueryKeyNorm>(
      name_of("query_key_norm"), {{"none", QueryKeyNorm::none}, {"head", QueryKeyNorm::head},
                                  {"whole", QueryKeyNorm::whole}});
  shape.activation = choice_of<Activation>(
      name_of("activation"), {{"silu", Activation::silu}, {"gelu_tanh", Activation::gelu_tanh},
                              {"gelu", Activation::gelu},
                              {"silu_clamped", Activation::silu_clamped}});
  shape.gated = flag("gated");
  shape.embedding_scale = number("embedding_scale");
  shape.residual_scale = number("residual_scale");
  shape.attention_scale = number("attention_scale");
  shape.attention_softcap = number("attention_softcap");
  shape.logit_softcap = number("logit_softcap");
  shape.logit_scale = number("logit_scale");
  shape.attention_sinks = flag("attention_sinks");
  shape.encoder = flag("encoder");
  shape.experts.count = integer("expert_count");
  shape.experts.used = integer("experts_used");
  shape.experts.ffn_size = integer("expert_ffn_size");
  shape.experts.normalized = flag("expert_weights_normalized");
  shape.experts.scale = number("expert_weights_scale");
  shape.experts.shared_ffn_size = integer("shared_expert_ffn_size");
  return shape;
}

}  // namespace headrace
