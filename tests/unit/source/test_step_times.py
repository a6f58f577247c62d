"""The benchmark of steps prints into a pipe that nobody reads to its end."""

import os
import subprocess
import sys
from pathlib import Path

bench = Path(__file__).parents[3] / "bench"


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import step_times; step_times.show([1.0, 2.0]); print('more')"],
            env={**os.environ, "PYTHONPATH": str(bench)},
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
