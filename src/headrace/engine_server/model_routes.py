"""The models that are served: the one that was loaded, and each LoRA adapter beside it."""

import msgspec

from headrace.engine_server.routes import Call, Route
from headrace.engine_server.service import ModelService
from headrace.http.asgi import send_json
from headrace.protocol.parsing import supported_parameters
from headrace.protocol.responses import ModelCard, ModelList

_encode = msgspec.json.Encoder().encode


class ModelRoutes:
    """`/v1/models`."""

    def __init__(self, service: ModelService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route("GET", "/v1/models", self._models, summary="The model that is served"),
            Route("GET", "/v1/models/{model...}", self._model, summary="The same by name"),
        ]

    async def _models(self, call: Call) -> None:
        base = await self._card()
        adapters = [self._adapter_card(base, name) for name in self._service.engine.adapters]
        await send_json(call.send, 200, _encode(ModelList([base, *adapters])))

    async def _model(self, call: Call) -> None:
        adapter = self._service.adapter_of(call.values["model"])
        card = await self._card()
        if adapter is not None:
            card = self._adapter_card(card, adapter)
        await send_json(call.send, 200, _encode(card))

    async def _card(self) -> ModelCard:
        service = self._service
        ready = service.engine.ready
        dialect = service.known_dialect
        facts = await service.facts() if ready is not None else None
        embeds = ready is not None and ready.dimensions is not None
        tools = dialect.tool_format if dialect else None
        reasoning = dialect.reasoning if dialect else None
        return ModelCard(
            id=service.config.served_name,
            created=int(service.created_wall_s),
            object="model",
            owned_by="headrace",
            max_model_len=None if ready is None else ready.context_length,
            root=service.config.served_name,
            modalities=["text"],
            quantization=facts.quantization if facts else None,
            supported_parameters=[] if embeds else self._parameters(),
            tool_parser=tools.name if tools else None,
            reasoning_parser=reasoning.name if reasoning else None,
        )

    def _parameters(self) -> list[str]:
        """What requests may have: `suffix` only of a model that has tokens for it."""
        fills_gaps = self._service.fills_gaps
        return [name for name in supported_parameters if fills_gaps or name != "suffix"]

    def _adapter_card(self, base: ModelCard, name: str) -> ModelCard:
        """What differs from the base: its name, and the version of what it adds."""
        adapter = self._service.engine.adapters[name]
        return msgspec.structs.replace(
            base, id=f"{base.id}:{name}", parent=base.id, adapter_version=adapter.version
        )
