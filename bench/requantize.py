"""Make the same model in another quantization, so that engines are compared on equal files.

Uses the `gguf` package alone, none of headrace's own reading or quantizing code:

    python bench/requantize.py IN.gguf OUT.gguf --type Q4_0
"""

import argparse
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

types = ("BF16", "F16", "F32", "MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
file_types = {  # where the name is another than the type's
    "F32": LlamaFileType.ALL_F32,
    "MXFP4": LlamaFileType.MOSTLY_MXFP4_MOE,
    "Q4_K": LlamaFileType.MOSTLY_Q4_K_S,
    "Q5_K": LlamaFileType.MOSTLY_Q5_K_S,
}
header_keys = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, but: str | None = None) -> None:
    """Copy every key and value but those that the writer makes itself, and those of one prefix."""
    for field in reader.fields.values():
        if field.name in header_keys or field.name == "general.file_type":
            continue
        if but is not None and field.name.startswith(but):
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=item)


def add_file_type(writer: GGUFWriter, kind: GGMLQuantizationType) -> None:
    """Say what most tensors are in; OpenVINO opens no file that does not."""
    found = file_types.get(kind.name)
    writer.add_file_type(found if found is not None else LlamaFileType[f"MOSTLY_{kind.name}"])


def requantize(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Write `target` with every matrix of `source` as `kind`; vectors stay as they are."""
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = GGUFWriter(target, architecture.contents())
    copy_metadata(reader, writer)
    add_file_type(writer, kind)
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", default="Q4_0", choices=sorted(types))
    arguments = parser.parse_args()
    requantize(arguments.source, arguments.target, GGMLQuantizationType[arguments.type])


if __name__ == "__main__":
    main()
