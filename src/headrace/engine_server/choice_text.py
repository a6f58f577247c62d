"""From one choice's token ids to its text: bytes, complete characters, the earliest stop match."""

import msgspec

from headrace.engine_server.logprobs import HeldTokens, PlacedToken
from headrace.engine_server.messages import Output, Submit
from headrace.tokenizer.detokenizer import IncrementalDetokenizer, TokenBytes
from headrace.tokenizer.stop_matcher import StopMatcher, StopResult


class ChoiceText:
    """The text of one choice so far, and how it ended."""

    def __init__(
        self,
        tokenizer: TokenBytes,
        submit: Submit,
        matcher: StopMatcher | None,
        *,
        shows_stop: bool = False,
    ) -> None:
        """`matcher` finds the stop strings of this choice alone. `shows_stop`: the one that ends
        the text is part of it."""
        self.finish_reason: str | None = None
        self.stop: str | None = None  # the stop string that ended it
        self._shows_stop = shows_stop
        self._tokenizer = tokenizer
        self._min_tokens = submit.min_tokens
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._held = None if submit.top_logprobs is None else HeldTokens()
        self._characters = 0  # of the whole output, counted only for `_held`
        self._matcher = matcher
        self._stop_matched = False

    @property
    def ended(self) -> bool:
        """Whether nothing more of it is shown."""
        return self.finish_reason is not None

    def read(self, output: Output) -> tuple[str, Output | None]:
        """The text that an output adds; where a stop string is complete, also the output cut there.

        Of several tokens in an output each is read by itself, so that none after a stop counts."""
        if self._matcher is None:
            return self._push(output), None
        if len(output.token_ids) == 1:
            return self._match(output)
        text = ""
        for index in range(len(output.token_ids)):
            added, at_stop = self._match(_cut(output, index))
            text += added
            if at_stop is not None:
                whole = output.token_ids[: index + 1]
                return text, msgspec.structs.replace(at_stop, token_ids=whole)
        return text, None

    def finish(self, reason: str) -> str:
        """The text that was held back when the engine ended the choice.

        A limit may cut a character in two: its text ends before that one."""
        rest = "" if reason == "length" else self._detokenizer.finish()
        self.finish_reason = reason
        if self._matcher is None:
            return rest
        result = self._matcher.push(rest)
        if result.matched is not None:
            return self._end_at_stop(result)
        return result.text_to_emit + self._matcher.finish()

    def release_tokens(self, text: str) -> tuple[PlacedToken, ...]:
        """The tokens, with log-probabilities if asked for, that begin in the text shown now."""
        if self._held is None:
            return ()
        tokens = self._held.release(text)
        if self.ended and not self._stop_matched:
            tokens += self._held.release_all()
        return tokens

    def _match(self, output: Output) -> tuple[str, Output | None]:
        text = self._push(output)
        if self._matcher is None or output.completion_tokens <= self._min_tokens:
            return text, None
        result = self._matcher.push(text)
        if result.matched is None:
            return result.text_to_emit, None
        return self._end_at_stop(result), output

    def end(self) -> None:
        """End it where it is: what was held back is not shown."""
        self.finish_reason = "stop"
        self._stop_matched = True

    def _end_at_stop(self, result: StopResult) -> str:
        """The text up to the stop string that was found, with it where it is to be shown."""
        self.end()
        self.stop = result.matched
        shown = result.matched if self._shows_stop else None
        return result.text_to_emit + (shown or "")

    def _push(self, output: Output) -> str:
        """An output's text; where log-probabilities are wanted, its tokens are noted one by one."""
        if self._held is None:
            return self._detokenizer.push(output.token_ids)
        text = ""
        for token_id, (logprob, top) in zip(output.token_ids, output.logprobs, strict=True):
            added = self._detokenizer.push([token_id])
            start, self._characters = self._characters, self._characters + len(added)
            # Bytes of an earlier token that proved to be no character come out before its own.
            own = len(self._tokenizer.text_bytes(token_id).decode(errors="replace"))
            start = max(start, self._characters - own)
            self._held.add(PlacedToken(start, token_id, logprob, top))
            text += added
        return text


def _cut(output: Output, index: int) -> Output:
    """The output with one of its tokens, as if the step had ended there."""
    after = len(output.token_ids) - index - 1
    cut_drafts = max(0, after - 1)  # the step's last token is none
    return msgspec.structs.replace(
        output,
        token_ids=output.token_ids[index : index + 1],
        logprobs=output.logprobs[index : index + 1],
        completion_tokens=output.completion_tokens - after,
        accepted_drafts=output.accepted_drafts - cut_drafts,
        refused_drafts=output.refused_drafts + cut_drafts,
    )
