"""How engines are given LoRA adapters, and how a request asks for one.

What differs is data (`LoraChoice` of an engine's facts); an engine without one serves none.
"""

from collections.abc import Mapping, Sequence

from headrace.adapters.facts import LoraChoice
from headrace.adapters.protocol import LaunchRequest
from headrace.base.errors import InvalidRequest

hub_scheme = "hf://"


def lora_fields(
    choice: LoraChoice | None, served_model_name: str, adapter: str, adapters: Sequence[str]
) -> Mapping[str, object]:
    """The fields of a request's body that send it through an adapter.

    `adapters` are those that the engine was started with, in their order."""
    match choice:
        case LoraChoice.MODEL_AND_NAME:
            return {"model": f"{served_model_name}:{adapter}"}
        case LoraChoice.NAME:
            return {"model": adapter}
        case LoraChoice.PATH_FIELD:
            return {"model": served_model_name, "lora_path": adapter}
        case LoraChoice.SCALES:
            used = {"id": list(adapters).index(adapter), "scale": 1.0}
            return {"model": served_model_name, "lora": [used]}
    raise AssertionError("a deployment with adapters is on an engine that has them")


def check_lora(engine: str, choice: LoraChoice | None, adapters: Sequence[object]) -> None:
    """InvalidRequest for adapters on an engine that is not given any."""
    if adapters and choice is None:
        raise InvalidRequest(
            f"{engine} is given no LoRA adapters by headrace; leave loras out, or use another "
            "engine.",
            param="loras",
        )


def hub_or_path(source: str) -> str:
    """A source as engines name it that fetch from the hub themselves."""
    return source.removeprefix(hub_scheme)


def lora_words(request: LaunchRequest, option: str, *first: str) -> tuple[str, ...]:
    """`first`, then the option with NAME=SOURCE of every adapter behind it; nothing without any."""
    if not request.loras:
        return ()
    pairs = (f"{lora.name}={hub_or_path(lora.source)}" for lora in request.loras)
    return (*first, option, *pairs)


def lora_paths(request: LaunchRequest, option: str, *first: str) -> tuple[str, ...]:
    """`first`, then `option PATH` for each adapter of an engine that numbers them."""
    for lora in request.loras:
        if "://" in lora.source:
            raise InvalidRequest(
                f"{lora.name}: this engine reads adapters from files; give a path instead of "
                f"{lora.source}.",
                param="loras",
            )
    words = [word for lora in request.loras for word in (option, lora.source)]
    return (*first, *words) if words else ()
