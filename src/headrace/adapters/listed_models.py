"""An answer of /v1/models, as far as engines say in it what a model can take."""

import msgspec


class ListedMeta(msgspec.Struct):
    """llama.cpp's particulars; its `n_ctx` is that of one slot, which is one request's."""

    n_ctx: int | None = None


class ListedModel(msgspec.Struct):
    """One model: `max_model_len` is vLLM's, SGLang's and ours."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None  # OpenRouter, Together
    meta: ListedMeta | None = None

    def longest(self) -> int | None:
        """The longest context of one request, where it is said."""
        of_slot = self.meta.n_ctx if self.meta else None
        found = (self.max_model_len, self.context_length, of_slot)
        return next((length for length in found if length is not None and length > 0), None)


class ListedModels(msgspec.Struct):
    """The whole list."""

    data: list[ListedModel]


_decode = msgspec.json.Decoder(ListedModels).decode


def context_length_of(body: bytes, served_model_name: str) -> int | None:
    """The longest context of the model of this name; None if the list does not say."""
    try:
        listed = _decode(body).data
    except msgspec.DecodeError:
        return None
    return next((model.longest() for model in listed if model.id == served_model_name), None)


def lists_models(body: bytes) -> bool:
    """Whether this is a list of models at all: a sign of life that no stranger gives."""
    try:
        _decode(body)
    except msgspec.DecodeError:
        return False
    return True
