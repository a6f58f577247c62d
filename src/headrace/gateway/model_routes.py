"""GET /v1/models: the models that a key may use."""

from headrace.base.errors import NotFound
from headrace.gateway.route_table import Call, Route
from headrace.gateway.snapshot import ServedModel
from headrace.gateway.state import GatewayState
from headrace.protocol.responses import ModelCard, ModelList


class ModelRoutes:
    """The list, and one of it."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        return (
            Route("/v1/models", "GET", self._list),
            Route("/v1/models/{model}", "GET", self._one),
        )

    async def _list(self, call: Call) -> None:
        models = self._state.follower.snapshot.models.values()
        each = [one for served in models for one in (served, *adapters_of(served))]
        cards = [self._card(served) for served in each if call.principal.may_ask(served)]
        await call.answer_value(ModelList(cards))

    async def _one(self, call: Call) -> None:
        name = call.parameter
        served = (await self._state.follower.snapshot_with(name)).find(name)
        if served is None or not call.principal.may_ask(served):
            raise NotFound(
                f"There is no model {name!r} for this key; GET /v1/models lists them.",
                param="model",
            )
        await call.answer_value(self._card(served))

    def _card(self, served: ServedModel) -> ModelCard:
        return ModelCard(
            id=served.name,
            created=int(served.model.create_time),
            object="model",
            owned_by="headrace",
            parent=served.model.name if served.adapter else None,
            max_model_len=served.context_length
            or self._state.services.contexts.longest(served.pools),
        )


def adapters_of(served: ServedModel) -> list[ServedModel]:
    """A model's LoRA adapters, each as a model of its own."""
    return [served.with_adapter(name) for name in sorted(served.loras)]
