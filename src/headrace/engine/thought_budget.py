"""How long a model may think: once a thought has its tokens, its closing mark is all that may come.

A pure function of the output so far, so that preemption, drafts and load change nothing.
"""

from array import array

from headrace.engine.request import ThoughtBudget


def is_spent(output: "array[int]", budget: ThoughtBudget) -> bool:
    """Whether the output's first thought is open still and has no token left.

    Later thoughts are not bounded: after its first, a model answers."""
    start = 0
    if budget.opening_id is not None:
        try:
            start = output.index(budget.opening_id) + 1
        except ValueError:
            return False
    thought = output[start : start + budget.token_count]
    return len(thought) == budget.token_count and budget.closing_id not in output[start:]
