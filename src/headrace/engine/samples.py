"""What a step's samples mean for the sequences: tokens taken, drafts confirmed, ends, failures."""

from typing import NamedTuple

from headrace.engine.request import FinishReason, TokenLogprobs
from headrace.engine.runner import StepResult
from headrace.engine.sequence import Sequence

not_finite_token_id = -1  # StepResult.token_ids
all_banned_token_id = -2
all_banned_error = (
    "No token was allowed at this place of the output: grammar, allowed_token_ids, bad_words and "
    "min_tokens together exclude all of them, or the grammar is too complex. Loosen one of them."
)
not_finite_error = (
    "The model's output for this request was not finite; the request failed, others did not. "
    "Send it again; if it fails again, the model file or this prompt is the cause."
)


class Taken(NamedTuple):
    """What one sequence got of a step."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # of these tokens, if asked for
    accepted: int  # drafts that were right
    reason: FinishReason | None
    error: str | None = None


class StepSamples:
    """A step's result, read row by row."""

    def __init__(self, result: StepResult) -> None:
        self._result = result
        self._token_ids: list[int] = result.token_ids.tolist()
        self._logprobs: list[float] = result.logprobs.tolist()

    def take(self, sequence: Sequence, row: int) -> Taken:
        """Append the sampled tokens to the sequence: one, and one more for each draft it confirms.

        What comes after the first wrong draft, or after the end, is as if it never was."""
        if not sequence.max_tokens:  # the prompt alone was asked for
            return Taken((), (), 0, FinishReason.LENGTH)
        reason: FinishReason | None = None
        taken: list[int] = []
        logprobs: list[TokenLogprobs] = []
        count, drafts, accepted = len(sequence.tokens) - sequence.prompt_count, sequence.drafts, 0
        top_count = sequence.request.sampling.top_logprobs
        while True:
            token_id = self._token_ids[row + accepted]
            if token_id < 0:
                error = not_finite_error if token_id == not_finite_token_id else all_banned_error
                return Taken(tuple(taken), tuple(logprobs), accepted, FinishReason.ERROR, error)
            if token_id in sequence.stop_token_ids and count >= sequence.min_tokens:
                reason = FinishReason.STOP
                break
            taken.append(token_id)
            sequence.tokens.append(token_id)
            sequence.cumulative_logprob += self._logprobs[row + accepted]
            if top_count is not None:
                logprobs.append(self._logprobs_of(row + accepted, top_count))
            count += 1
            end = sequence.output_end
            if end is not None and end.is_reached_by(token_id):
                reason = FinishReason.STOP
                break
            if count >= sequence.max_tokens:
                reason = FinishReason.LENGTH
                break
            if not drafts or accepted == len(drafts) or drafts[accepted] != token_id:
                break
            accepted += 1
            sequence.computed += 1
        return Taken(tuple(taken), tuple(logprobs) if logprobs else (), accepted, reason)

    def add_prompt_logprobs(self, sequence: Sequence, row: int, count: int) -> bool:
        """Note those of the prompt's next `count` tokens; False if a row was not finite.

        `computed` has gone past these rows; what was noted before a preemption is not noted again.
        """
        noted = sequence.prompt_logprobs
        assert noted is not None
        top_count = sequence.request.sampling.prompt_logprobs or 0
        end = min(sequence.computed, sequence.prompt_count - 1)
        for index in range(count):
            if self._token_ids[row + index] < 0:
                return False
            if end - count + index == len(noted):
                noted.append(self._logprobs_of(row + index, top_count))
        return True

    def _logprobs_of(self, row: int, count: int) -> TokenLogprobs:
        top: tuple[tuple[int, float], ...] = ()
        result = self._result
        if count and result.top_ids is not None and result.top_logprobs is not None:
            ids = result.top_ids[row, :count].tolist()
            top = tuple(zip(ids, result.top_logprobs[row, :count].tolist(), strict=True))
        return TokenLogprobs(self._logprobs[row], top)
