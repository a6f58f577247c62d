#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <mutex>

#include "binding/bindings.hpp"
#include "binding/cpu_transformer.hpp"
#include "binding/model_arguments.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

namespace {

using LayerFields = std::vector<std::array<int, 4>>;   // window, rotation, device, experts' device
using DeviceFields = std::vector<std::pair<std::vector<int>, int>>;         // cores, threads
using RotationFields = std::vector<std::pair<std::vector<double>, float>>;  // frequencies, magnitude

void construct(CpuTransformer* self, const nb::object& spec, const LayerFields& layers,
               const RotationFields& rotations, const nb::dict& tensors, int num_blocks,
               int rows_max, int sequences_max, const DeviceFields& devices,
               const std::string& isa_limit, const std::string& kv_type, int adapter_slots,
               int adapter_rank_max, const std::string& packed_path, int rank, int ranks,
               int group_descriptor, int activation_bits) {
  if (ranks < 1 || rank < 0 || rank >= ranks) throw InvalidStep("a rank is 0 to ranks - 1");
  ModelShape shape = shape_of(spec);
  for (const auto& [window_tokens, rotation, device, experts_device] : layers)
    shape.layers.push_back({window_tokens, rotation, device, experts_device});
  for (const auto& [frequencies, magnitude] : rotations)
    shape.rotations.push_back({frequencies, magnitude});
  std::vector<Device> placed;
  for (const auto& [cores, threads] : devices) placed.push_back({cores, threads});
  new (self) CpuTransformer(shape, tensors,
                            {num_blocks, rows_max, sequences_max, placed, isa_limit,
                             activation_bits, kv_type_of(kv_type), adapter_slots, adapter_rank_max, packed_path,
                             {rank, ranks}, group_descriptor});
}

// An adapter's parts as (layer, target, scale, A, B), packed before the lock is taken.
void load_adapter(CpuTransformer& self, int slot, const nb::list& parts) {
  std::vector<AdapterPart> read;
  for (const auto& item : parts) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 5) throw nb::value_error("a part is (layer, target, scale, A, B)");
    const int layer = nb::cast<int>(fields[0]);
    const int target = nb::cast<int>(fields[1]);
    const std::string name = std::to_string(target) + " of layer " + std::to_string(layer);
    read.push_back({layer, target, nb::cast<float>(fields[2]),
                    raw_tensor(name, nb::cast<nb::tuple>(fields[3])),
                    raw_tensor(name, nb::cast<nb::tuple>(fields[4]))});
  }
  nb::gil_scoped_release release;
  Transformer& transformer = self.transformer();
  auto adapter = std::make_unique<Adapter>(
      transformer.shape(), read, transformer.adapters().rank_max(), self.options().place);
  const std::lock_guard lock(self.mutex());
  transformer.load_adapter(slot, std::move(adapter));
}

void unload_adapter(CpuTransformer& self, int slot) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().load_adapter(slot, nullptr);
}

void discard_kv(CpuTransformer& self) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.transformer().discard_kv();
}

void copy_blocks(CpuTransformer& self, const std::vector<std::pair<int, int>>& pairs) {
  for (const auto& [source, destination] : pairs) {
    self.check_block(source);
    self.check_block(destination);
  }
  const std::lock_guard lock(self.mutex());
  self.transformer().copy_blocks(pairs);
}

// Returns when rank 0 is gone. Between two of its calls an adapter may be loaded.
void serve(CpuTransformer& self) {
  if (self.options().place.rank == 0) throw InvalidStep("rank 0 is not served, it asks");
  nb::gil_scoped_release release;
  Transformer& transformer = self.transformer();
  for (RankCommand command = transformer.await_command(); command != RankCommand::close;
       command = transformer.await_command()) {
    const std::lock_guard lock(self.mutex());
    transformer.obey(command);
  }
}

// Takes no lock: steps go on meanwhile.
const char* check_packed(CpuTransformer& self, std::size_t byte_count) {
  nb::gil_scoped_release release;
  PackedFile* file = self.transformer().packed_file();
  switch (file == nullptr ? PackedCheck::sound : file->check_next(byte_count)) {
    case PackedCheck::more: return "more";
    case PackedCheck::sound: return "sound";
    case PackedCheck::damaged: return "damaged";
  }
  return "";
}

nb::bytes export_blocks(CpuTransformer& self, const std::vector<int>& block_ids) {
  for (const int id : block_ids) self.check_block(id);
  Transformer& transformer = self.transformer();
  const std::size_t block_bytes = transformer.export_bytes();
  const ExportHeader header = self.header();
  std::vector<std::uint8_t> out(sizeof(header) + block_ids.size() * block_bytes);
  std::memcpy(out.data(), &header, sizeof(header));
  const std::lock_guard lock(self.mutex());
  for (std::size_t i = 0; i < block_ids.size(); ++i)
    transformer.export_block(block_ids[i], out.data() + sizeof(header) + i * block_bytes);
  return nb::bytes(out.data(), out.size());
}

void import_blocks(CpuTransformer& self, const std::vector<int>& block_ids, const nb::bytes& data) {
  for (const int id : block_ids) self.check_block(id);
  Transformer& transformer = self.transformer();
  const std::size_t block_bytes = transformer.export_bytes();
  const ExportHeader header = self.header();
  if (data.size() != sizeof(header) + block_ids.size() * block_bytes ||
      std::memcmp(data.data(), &header, sizeof(header)) != 0)
    throw InvalidStep("these bytes are not this many KV blocks of this model's layout");
  const auto* bytes = static_cast<const std::uint8_t*>(data.data()) + sizeof(header);
  const std::lock_guard lock(self.mutex());
  for (std::size_t i = 0; i < block_ids.size(); ++i)
    transformer.import_block(block_ids[i], bytes + i * block_bytes);
}

}  // namespace

void bind_transformer(nb::module_& module) {
  nb::class_<CpuTransformer>(module, "CpuTransformer")
      .def("__init__", &construct, nb::kw_only(), "spec"_a, "layers"_a, "rotations"_a, "tensors"_a,
           "num_blocks"_a, "rows_max"_a, "sequences_max"_a, "devices"_a, "isa_limit"_a,
           "kv_type"_a = "f16", "adapter_slots"_a = 0, "adapter_rank_max"_a = 0, "packed_path"_a = "",
           "rank"_a = 0, "ranks"_a = 1, "group_descriptor"_a = -1, "activation_bits"_a = 16)
      .def("execute", &execute, "token_ids"_a.noconvert(), "row_starts"_a.noconvert(),
           "context_lens"_a.noconvert(), "block_ids"_a.noconvert(), "block_starts"_a.noconvert(),
           "sampled"_a.noconvert(), "temperature"_a.noconvert(), "top_k"_a.noconvert(),
           "top_p"_a.noconvert(), "min_p"_a.noconvert(), "seed"_a.noconvert(),
           "position"_a.noconvert(), "out_token_ids"_a.noconvert(), "out_logprobs"_a.noconvert(),
           "out_logits"_a.noconvert().none() = nb::none(),
           "edits"_a.none() = nb::none(), "masks"_a.none() = nb::none(),
           "top"_a.none() = nb::none(), "out_hidden"_a.noconvert().none() = nb::none(),
           "filters"_a.none() = nb::none(), "adapters"_a.noconvert().none() = nb::none())
      .def("load_adapter", &load_adapter, "slot"_a, "parts"_a)
      .def("unload_adapter", &unload_adapter, "slot"_a)
      .def("discard_kv", &discard_kv)
      .def("serve", &serve)
      .def("check_packed", &check_packed, "byte_count"_a)
      .def("copy_blocks", &copy_blocks, "pairs"_a)
      .def("export_blocks", &export_blocks, "block_ids"_a)
      .def("import_blocks", &import_blocks, "block_ids"_a, "data"_a)
      .def_prop_ro("kernel_name",
                   [](CpuTransformer& self) { return std::string(self.transformer().kernels().name); })
      .def_prop_ro("activation_bits",
                   [](CpuTransformer& self) { return self.transformer().activation_bits(); })
      .def_prop_ro("max_model_len",
                   [](CpuTransformer& self) { return self.transformer().max_model_len(); })
      .def_prop_ro("device_weight_bytes",
                   [](CpuTransformer& self) { return self.transformer().weight_bytes(); })
      .def_prop_ro("kv_bytes", [](CpuTransformer& self) {
        return self.transformer().kv_cache().byte_count();
      });
}

}  // namespace headrace
