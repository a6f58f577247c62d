"""The NEON kernels against the portable ones, cross-compiled and run by an emulator."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

repository = Path(__file__).parents[3]
kernels = repository / "csrc" / "kernels"
compiler = shutil.which("aarch64-linux-gnu-g++")
emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
flags = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-DHEADRACE_ARM=1")
sources = {
    Path(__file__).with_name("arm_kernels.cpp"): (),
    kernels / "dispatch.cpp": (),
    kernels / "isa_portable.cpp": (),
    kernels / "isa_dotprod.cpp": ("-march=armv8.2-a+dotprod",),
    kernels / "isa_i8mm.cpp": ("-march=armv8.2-a+dotprod+i8mm",),
}
compile_timeout_s = 280  # of 19 s on a machine that does nothing else; below pytest's own


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static ARM program that compares the chosen kernels with the portable ones."""
    if compiler is None or emulator is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user-static")
    directory = tmp_path_factory.mktemp("arm")

    def compile_one(source: Path) -> Path:
        target = directory / f"{source.stem}.o"
        include = f"-I{repository / 'csrc'}"
        command = [
            compiler,
            *flags,
            *sources[source],
            include,
            "-c",
            str(source),
            "-o",
            str(target),
        ]
        subprocess.run(command, check=True, timeout=compile_timeout_s)
        return target

    with ThreadPoolExecutor(max_workers=2) as pool:
        objects = list(pool.map(compile_one, sources))
    program = directory / "arm_kernels"
    subprocess.run([compiler, "-static", *objects, "-o", program], check=True, timeout=60)
    return program


@pytest.mark.parametrize(
    ("cpu", "table"),
    [("max", "neon-i8mm"), ("neoverse-n1", "neon-dotprod"), ("cortex-a72", "portable")],
)
def test_each_cpu_runs_its_best_kernels_and_they_agree_with_the_portable_ones(
    driver: Path, cpu: str, table: str
) -> None:
    assert emulator is not None
    done = subprocess.run(
        [emulator, "-cpu", cpu, driver], capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0] == table
    assert [line for line in lines if line.startswith("product")] == [
        f"product {number}" for number in range(3, 11)
    ]
    assert [line for line in lines if line.startswith("byte product")] == [
        f"byte product {number}" for number in (3, 4, 6, 10)
    ]
    assert "attention masked int8" in lines
    assert lines[-1] == "done"
