"""Which endpoints of a pool hold which KV blocks, by the word of their engines.

    events of engines      block hash -> set of slots, as the bits of one integer
    learnt from prompts    key of a text's beginning -> (block hash, tokens up to its end)

A gateway has text, an engine has hashes of token blocks. What joins them is learnt once a prompt,
off its path: some engine counts its tokens, the hashes follow from those and the platform's secret,
and each beginning of the text is written down with the block that it ends in. From then on a match
is exact: an endpoint has the beginning if it said that it holds that block. Where a text ends in
its tokens is reckoned by proportion and a block is taken off, so a match is never too long by more
than a text's unevenness. Blocks between two ends are not looked up: engines
evict tails first, so a hole there is rare, and costs a poorer choice.

What was sent lately counts as held until the engine had the time to tell, or for `promise_s`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace.router.by_slot import TokensBySlot, no_tokens, raise_tokens, set_tokens
from headrace.router.prompt_prefix import PromptPrefix, block_ends

meanings_max = 262_144  # beginnings of texts that are understood; about 60 MB
blocks_per_slot_max = 1 << 20  # of one engine's cache; what is beyond is not known
promise_s = 5.0  # a router's own request is believed to be stored so long without a word


class BlockIndex:
    """The blocks of one pool's endpoints, by slot."""

    __slots__ = (
        "_held",
        "_holders",
        "_meanings",
        "_promised",
        "block_size_tokens",
        "telling",
    )

    def __init__(self) -> None:
        self.block_size_tokens = 0  # as the engines tell; 0: none did
        self._holders: dict[bytes, int] = {}
        self._held: dict[int, set[bytes]] = {}  # by slot; its keys are those that tell
        self._promised: dict[int, OrderedDict[bytes, float]] = {}  # by slot: until when
        self.telling = 0  # bits of the slots whose endpoints tell what they hold
        self._meanings: OrderedDict[int, tuple[bytes, int]] = OrderedDict()

    @property
    def meaning_count(self) -> int:
        """How many beginnings of texts are understood."""
        return len(self._meanings)

    def told(
        self, slot: int, stored: Iterable[bytes], removed: Iterable[bytes], now_s: float
    ) -> None:
        """What an engine holds now and no more, in that order; also the word that it tells."""
        self.telling |= 1 << slot
        held = self._held.setdefault(slot, set())
        promised = self._promised.get(slot)
        for block in stored:
            if promised is not None:
                promised.pop(block, None)
            if len(held) < blocks_per_slot_max:
                held.add(block)
                self._holders[block] = self._holders.get(block, 0) | (1 << slot)
        for block in removed:
            held.discard(block)
            self._clear(slot, block)
        if promised is not None:
            self._end_promises(slot, promised, now_s)

    def forget(self, slot: int) -> None:
        """The endpoint is gone, or its cache is."""
        for block in self._held.pop(slot, ()):
            self._clear(slot, block)
        for block in self._promised.pop(slot, ()):
            self._clear(slot, block)
        self.telling &= ~(1 << slot)

    def is_understood(self, prefix: PromptPrefix) -> bool:
        """Whether every beginning of a prompt is known by its block."""
        return all(key in self._meanings for key in prefix.keys)

    def learn(
        self,
        prefix: PromptPrefix,
        token_count: int,
        hashes: Sequence[bytes],
        *,
        public_token_count: int = 0,
    ) -> None:
        """A prompt is so many tokens, whose blocks have these hashes; those of its first tokens
        that are public are the same for all tenants."""
        size, text_bytes = self.block_size_tokens, prefix.text_bytes
        if not size or not text_bytes:
            return
        for depth, (key, end) in enumerate(zip(prefix.keys, block_ends, strict=False)):
            blocks = token_count * min(end, text_bytes) // text_bytes // size - 1
            if depth < prefix.public_count:  # no tenant's own block is what all tenants mean
                blocks = min(blocks, public_token_count // size)
            if blocks >= 1 and key not in self._meanings:
                self._meanings[key] = (hashes[min(blocks, len(hashes)) - 1], blocks * size)
        while len(self._meanings) > meanings_max:
            self._meanings.popitem(last=False)

    def sent(self, slot: int, prefix: PromptPrefix, now_s: float) -> None:
        """A request with this prompt goes to an endpoint, which will tell of it soon."""
        if not self.telling >> slot & 1:
            return
        held = self._held[slot]
        promised = self._promised.setdefault(slot, OrderedDict())
        meanings = self._meanings
        for key in prefix.keys:
            meaning = meanings.get(key)
            if meaning is not None and meaning[0] not in held:
                promised[meaning[0]] = now_s + promise_s
                promised.move_to_end(meaning[0])
                self._holders[meaning[0]] = self._holders.get(meaning[0], 0) | (1 << slot)
        self._end_promises(slot, promised, now_s)

    def match(
        self,
        prefix: PromptPrefix,
        slots: int,
        slot_count: int,
        believe: Callable[[], TokensBySlot],
    ) -> TokensBySlot:
        """Tokens that each slot has; `slots` are those that matter, as bits.

        They are estimates from bytes as everywhere in a router, so that costs stay comparable; it
        is the depth that is exact. `believe` is asked only if it is needed: for those that do not
        tell, and behind the last beginning that is understood, where it counts if it is longer."""
        told: list[tuple[int, int]] = []  # (slots, tokens)
        alive = self.telling & slots
        meanings, holders = self._meanings, self._holders
        tokens = 0
        is_whole = True
        for key, end in zip(prefix.keys, prefix.tokens, strict=True):
            meaning = meanings.get(key)
            if meaning is None:
                is_whole = False
                break
            still = alive & holders.get(meaning[0], 0)
            if still != alive:
                told.append((alive & ~still, tokens))
                alive = still
                if not alive:
                    break
            tokens = end
        if alive and is_whole:
            told.append((alive, tokens))
            alive = 0
        if slots & ~self.telling or alive:
            matched = believe()
            if tokens:
                raise_tokens(matched, alive, tokens)
        else:
            matched = no_tokens(slot_count)
            told = [each for each in told if each[1]]
        for bits, depth in told:
            set_tokens(matched, bits, depth)
        return matched

    def held_tokens(self, slot: int, prefix: PromptPrefix) -> int | None:
        """What an endpoint holds of a prompt in its own tokens; None if that is not known."""
        if not self.telling >> slot & 1:
            return None
        meanings, holders, bit = self._meanings, self._holders, 1 << slot
        tokens = 0
        for key in prefix.keys:
            meaning = meanings.get(key)
            if meaning is None:
                return None
            if not holders.get(meaning[0], 0) & bit:
                break
            tokens = meaning[1]
        return tokens

    def _end_promises(self, slot: int, promised: "OrderedDict[bytes, float]", now_s: float) -> None:
        while promised:
            block, until_s = next(iter(promised.items()))
            if until_s > now_s:
                return
            del promised[block]
            if block not in self._held.get(slot, ()):
                self._clear(slot, block)

    def _clear(self, slot: int, block: bytes) -> None:
        left = self._holders.get(block, 0) & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)
