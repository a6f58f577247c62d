"""One thread for each engine, where neither its test nor its deployment says how many.

The threads of an engine meet some hundred times a step. Beside other tests one of them often has no
core, and each meeting takes as long as a time slice: a server of two threads took three to seven
times as long as one of a single thread. Tests of several threads, ranks and deployments name them.
"""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """What the processes that a test starts find in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_THREADS", "1")
        yield
