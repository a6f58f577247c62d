"""How an embedding model's tokens become a text's vector, by sentence-transformers' layout.

MiniLM and E5 take the mean of all tokens, BGE the first one; the number is GGUF's.
"""

import json
from pathlib import Path

from headrace.base.errors import ModelFileError

pooling_name = Path("1_Pooling") / "config.json"
mean, first = 1, 2  # GGUF's pooling_type
known = {  # newer files have one word, older ones a flag for each
    **{"mean": mean, "pooling_mode_mean_tokens": mean},
    **{"cls": first, "pooling_mode_cls_token": first},
}


def read_pooling(path: Path) -> int:
    """The directory's pooling; the mean if it does not say. ModelFileError names another."""
    file = path / pooling_name
    if not file.is_file():
        return mean
    try:
        modes = json.loads(file.read_bytes())
        asked = {key for key, on in modes.items() if key.startswith("pooling_mode_") and on is True}
        if isinstance(word := modes.get("pooling_mode"), str):
            asked.add(word)
    except (ValueError, AttributeError) as error:
        raise ModelFileError(f"{file}: not valid JSON ({error}).", file=str(file)) from error
    if len(asked) != 1 or not asked <= set(known):
        raise ModelFileError(
            f"{file}: asks for {', '.join(sorted(asked)) or 'no pooling'}; headrace has the mean "
            "of all tokens, and the first one.",
            file=str(file),
        )
    return known[asked.pop()]
