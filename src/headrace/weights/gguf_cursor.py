"""A bounds-checked reading position in a mapped GGUF file: nothing is read before it is checked.

Each `take_*` names the field that it reads, so that an error can name it too. What would create
one Python object a value draws on a budget for the whole file: a hostile count fails fast.
"""

import mmap
import struct
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError

string_bytes_max = 16 * 1024 * 1024  # the longest real ones are chat templates, below 100 kB
objects_max = 8_000_000  # strings of a whole file; a vocabulary of 256k has 0.5 million with merges


class GgufCursor:
    """Reads forward through `data`, never past its end."""

    def __init__(self, data: mmap.mmap, file_name: str) -> None:
        self._data = data
        self._file_name = file_name
        self._objects_left = objects_max
        self.offset = 0

    @property
    def bytes_left(self) -> int:
        """How much of the file is after this position."""
        return len(self._data) - self.offset

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise ModelFileError for this file, naming the field."""
        raise ModelFileError(
            f"{self._file_name}: {field}: {problem}. The file is damaged or not a model that "
            "headrace can read; fetch or convert it again.",
            file=self._file_name,
            field=field,
        )

    def require(self, byte_count: int, field: str) -> None:
        """Fail unless that many bytes are left."""
        if byte_count > self.bytes_left:
            self.fail(
                field,
                f"needs {byte_count} bytes at offset {self.offset} "
                f"and the file ends after {self.bytes_left}",
            )

    def take(self, layout: struct.Struct, field: str) -> int | float:
        """One number."""
        self.require(layout.size, field)
        value: int | float = layout.unpack_from(self._data, self.offset)[0]
        self.offset += layout.size
        return value

    def take_u32(self, field: str) -> int:
        """An unsigned 32-bit number."""
        return int(self.take(u32, field))

    def take_u64(self, field: str) -> int:
        """An unsigned 64-bit number."""
        return int(self.take(u64, field))

    def take_string(self, field: str, bytes_max: int = string_bytes_max) -> str:
        """A length and that many bytes of UTF-8."""
        length = self.take_u64(field)
        if length > bytes_max:
            self.fail(field, f"a string of {length} bytes; at most {bytes_max} are allowed")
        self.require(length, field)
        text = self._data[self.offset : self.offset + length]
        self.offset += length
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            self.fail(field, f"not valid UTF-8 at its byte {error.start}")

    def take_strings(self, count: int, field: str) -> list[str]:
        """That many strings."""
        self.spend_objects(count, smallest_bytes=u64.size, field=field)
        return [self.take_string(field) for _ in range(count)]

    def take_numbers(
        self, count: int, layout: np.dtype[np.generic], field: str
    ) -> NDArray[np.generic]:
        """That many numbers, as a read-only view of the file; costs nothing but the check."""
        self.require(count * layout.itemsize, field)
        numbers: NDArray[np.generic] = np.frombuffer(self._data, layout, count, self.offset)
        self.offset += count * layout.itemsize
        return numbers

    def spend_objects(self, count: int, *, smallest_bytes: int, field: str) -> None:
        """Fail unless `count` values can be in the rest of the file and in this reader's budget."""
        self.require(count * smallest_bytes, field)
        if count > self._objects_left:
            self.fail(field, f"{count} values are more than the {objects_max} that a file may hold")
        self._objects_left -= count


u32 = struct.Struct("<I")
u64 = struct.Struct("<Q")
