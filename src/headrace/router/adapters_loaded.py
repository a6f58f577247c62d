"""Which LoRA adapters an endpoint was sent lately, and so has loaded."""

from collections import OrderedDict

adapters_max = 32  # engines keep fewer; more would only be remembered in vain
adapter_load_s = 1.0  # reading an adapter and copying it to the device; the cost of a stranger


class LoadedAdapters:
    """Beliefs about the adapters of one endpoint."""

    __slots__ = ("_adapters",)

    def __init__(self) -> None:
        self._adapters: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, adapter: str) -> bool:
        """Whether it should be loaded."""
        return adapter in self._adapters

    def sent(self, adapter: str) -> None:
        """A request for the adapter goes there."""
        self._adapters[adapter] = None
        self._adapters.move_to_end(adapter)
        if len(self._adapters) > adapters_max:
            self._adapters.popitem(last=False)
