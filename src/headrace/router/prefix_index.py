"""Which endpoints of a pool should have which beginnings of prompts in their caches.

    key -> set of slots, as the bits of one integer: a thousand endpoints are met at once
    slot -> its keys, the least recently sent first: what its engine will evict first

An endpoint's keys are those that it was sent lately: a prediction, because a router sees text and
an engine keeps blocks of tokens. It is bounded by the engine's cache, as far as that is known: by
what the engine says it keeps (`holds_at_most`), by time where it says nothing, and by what it
reported of each prompt: one that had less than was predicted is believed to keep less.
"""

import math
from collections import OrderedDict

from headrace.router.by_slot import TokensBySlot, many, no_tokens, set_tokens
from headrace.router.prompt_prefix import PromptPrefix

keys_max = 262_144  # of all slots together; about 60 MB
keys_per_slot_min = 512
unused_s_max = 1800.0  # other gateways and long answers evict what was not sent again by then
capacity_tokens_max = 1 << 24  # when nothing is known of an engine's cache
capacity_tokens_min = 4096
shrink, growth = 0.9, 1.02  # of the believed capacity, after a wrong and a right prediction
told_slack = 1.3  # our tokens are estimates from bytes
error_share_max = 0.25  # of the predicted tokens; less is granularity


class SlotBeliefs:
    """What one endpoint is believed to hold."""

    __slots__ = ("capacity_tokens", "is_told", "keys", "oldest_s", "tokens", "tokens_max")

    def __init__(self, tokens_max: int) -> None:
        self.keys: OrderedDict[int, tuple[int, float]] = OrderedDict()  # key: (tokens, sent at)
        self.tokens = 0
        self.tokens_max = tokens_max  # of the engine's cache, where it is known
        self.capacity_tokens = float(tokens_max)  # as learnt
        self.is_told = False  # its engine says how much it keeps
        self.oldest_s = -math.inf  # no key was sent before, as far as was looked


class PrefixIndex:
    """The beliefs about the endpoints of one pool, by slot."""

    __slots__ = ("_holders", "_keys_per_slot_max", "_slots")

    def __init__(self) -> None:
        self._keys_per_slot_max = keys_max
        self._holders: dict[int, int] = {}  # key -> bits of slots
        self._slots: dict[int, SlotBeliefs] = {}

    @property
    def key_count(self) -> int:
        """How many different beginnings are known."""
        return len(self._holders)

    def match(self, prefix: PromptPrefix, slot_count: int) -> TokensBySlot:
        """Tokens from the start on that each slot should have."""
        holders, keys = self._holders, prefix.keys
        if not keys or keys[0] not in holders:
            return [0] * slot_count if slot_count < many else no_tokens(slot_count)
        matched = no_tokens(slot_count)
        alive = -1  # every slot
        depth = 0
        for key in keys:
            still = alive & holders.get(key, 0)
            if still != alive:
                if alive > 0:
                    set_tokens(matched, alive & ~still, prefix.tokens[depth - 1])
                alive = still
                if not alive:
                    return matched
            depth += 1
        if alive > 0:
            set_tokens(matched, alive, prefix.tokens[depth - 1])
        return matched

    def matched(self, slot: int, prefix: PromptPrefix) -> int:
        """The same for one slot."""
        bit = 1 << slot
        tokens = 0
        for key, end in zip(prefix.keys, prefix.tokens, strict=True):
            if not self._holders.get(key, 0) & bit:
                break
            tokens = end
        return tokens

    def sent(self, slot: int, prefix: PromptPrefix, now_s: float, tokens_max: int = 0) -> None:
        """A request with this prompt goes to the endpoint, which will then have all of it.

        `tokens_max` is the size of the engine's cache; 0: it is not known."""
        keys, ends = prefix.keys, prefix.tokens
        if not keys:
            return
        beliefs = self._slots.get(slot)
        if beliefs is None or (tokens_max and beliefs.tokens_max != tokens_max):
            beliefs = self._beliefs(slot, tokens_max)
        known, holders, bit = beliefs.keys, self._holders, 1 << slot
        end = ends[-1]
        # The deepest first, so that it is forgotten first; without a call, as there may be 200.
        for key, start in zip(keys[::-1], (*ends[-2::-1], 0), strict=True):
            holding = holders.get(key, 0)
            if holding & bit:
                known.move_to_end(key)
            else:
                holders[key] = holding | bit
                beliefs.tokens += end - start
            known[key] = (end - start, now_s)
            end = start
        if (
            beliefs.tokens > beliefs.capacity_tokens
            or len(known) > self._keys_per_slot_max
            or (now_s - beliefs.oldest_s > unused_s_max and not beliefs.is_told)
        ):  # else without a look at what was sent longest ago, which is in no processor's cache
            self._evict(slot, beliefs, now_s)

    def observe(self, slot: int, predicted_tokens: int, cached_tokens: int) -> None:
        """What an engine really had of a prompt of which so much was predicted."""
        beliefs = self._slots.get(slot)
        if beliefs is None or predicted_tokens == 0:
            return
        if predicted_tokens - cached_tokens > error_share_max * predicted_tokens:
            held = min(beliefs.capacity_tokens, float(max(beliefs.tokens, 1)))
            beliefs.capacity_tokens = max(capacity_tokens_min, shrink * held)
        else:
            grown = growth * beliefs.capacity_tokens
            beliefs.capacity_tokens = min(beliefs.tokens_max, grown)

    def holds_at_most(self, slot: int, tokens: int) -> None:
        """The engine says that it keeps so many tokens of everybody's prompts in all.

        What it was sent before the newest of them is gone: engines evict the oldest first."""
        beliefs = self._slots.get(slot)
        if beliefs is None:
            return
        beliefs.is_told = True
        bound = told_slack * tokens
        while beliefs.keys and beliefs.tokens > bound:
            key, (own_tokens, _) = next(iter(beliefs.keys.items()))
            self._drop(slot, beliefs, key, own_tokens)

    def forget(self, slot: int) -> None:
        """The endpoint is gone, or its cache is."""
        beliefs = self._slots.pop(slot, None)
        if beliefs is not None:
            for key in beliefs.keys:
                self._clear_bit(slot, key)
            self._share_keys()

    def _beliefs(self, slot: int, tokens_max: int) -> SlotBeliefs:
        beliefs = self._slots.get(slot)
        if beliefs is None:
            beliefs = self._slots[slot] = SlotBeliefs(tokens_max or capacity_tokens_max)
            self._share_keys()
        elif tokens_max and beliefs.tokens_max != tokens_max:
            beliefs.tokens_max = tokens_max
            beliefs.capacity_tokens = min(beliefs.capacity_tokens, float(tokens_max))
        return beliefs

    def _share_keys(self) -> None:
        self._keys_per_slot_max = max(keys_per_slot_min, keys_max // max(1, len(self._slots)))

    def _evict(self, slot: int, beliefs: SlotBeliefs, now_s: float) -> None:
        keys, count_max = beliefs.keys, self._keys_per_slot_max
        while len(keys) > 1:
            oldest = next(iter(keys))
            tokens, sent_s = keys[oldest]
            is_over = beliefs.tokens > beliefs.capacity_tokens or len(keys) > count_max
            is_old = not beliefs.is_told and now_s - sent_s > unused_s_max
            if not (is_over or is_old):
                beliefs.oldest_s = sent_s
                return
            self._drop(slot, beliefs, oldest, tokens)

    def _drop(self, slot: int, beliefs: SlotBeliefs, key: int, tokens: int) -> None:
        del beliefs.keys[key]
        beliefs.tokens -= tokens
        self._clear_bit(slot, key)

    def _clear_bit(self, slot: int, key: int) -> None:
        left = self._holders[key] & ~(1 << slot)
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]
