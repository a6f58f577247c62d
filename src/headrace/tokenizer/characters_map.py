"""SentencePiece's normalization table: which characters become which, the longest match first.

A file carries it compiled (`precompiled_charsmap`): the byte size of a double-array trie, the trie
over UTF-8, then the replacements as strings that end with a zero byte. The layout of a trie unit is
that of Darts-clone: bits 0 to 7 the label (bit 31 marks a value), bit 8 "a value hangs here",
bits 10 to 30 the offset, times 256 where bit 9 is set.
"""

import numpy as np

from headrace.tokenizer.vocabulary import fail

key = "tokenizer.ggml.precompiled_charsmap"
label_bits = (1 << 31) | 0xFF
value_bits = (1 << 31) - 1


class CharactersMap:
    """A compiled table, walked for each character of a text."""

    def __init__(self, data: bytes) -> None:
        """Check its sizes; ModelFileError if they contradict each other."""
        trie_bytes = int.from_bytes(data[:4], "little")
        if len(data) < 8 or trie_bytes % 4 or not 4 <= trie_bytes <= len(data) - 4:
            fail(key, f"has a trie of {trie_bytes} bytes in {len(data)}")
        self._units: list[int] = np.frombuffer(data, "<u4", trie_bytes // 4, 4).tolist()
        self._texts = data[4 + trie_bytes :]

    def normalize(self, text: str) -> str:
        """The text with every match replaced. Cost: O(bytes of the text)."""
        data = text.encode()
        pieces: list[bytes] = []
        start = 0
        while start < len(data):
            length, replacement = self._longest(data, start)
            if length == 0:
                length = _character_bytes(data[start])
                replacement = data[start : start + length]
            pieces.append(replacement)
            start += length
        return b"".join(pieces).decode(errors="replace")

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """How many bytes the longest match has, and what it becomes; 0 if nothing matches."""
        units = self._units
        node = _offset(units[0])
        length, found = 0, 0
        for index in range(start, len(data)):
            node ^= data[index]
            if node >= len(units) or units[node] & label_bits != data[index]:
                break
            unit = units[node]
            node ^= _offset(unit)
            if unit >> 8 & 1 and node < len(units):
                length, found = index + 1 - start, units[node] & value_bits
        if length == 0:
            return 0, b""
        end = self._texts.find(b"\0", found)
        return length, self._texts[found : end if end >= 0 else len(self._texts)]


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)


def _character_bytes(first: int) -> int:
    """Bytes of the UTF-8 character that begins with this one."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
