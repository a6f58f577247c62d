import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.launchers.process_identity import birth_of, is_same_boot, kill_session

missing_proc = Path("/no/proc/here")


def test_a_process_keeps_its_mark() -> None:
    mark = birth_of(os.getpid())

    assert mark is not None
    assert birth_of(os.getpid()) == mark
    assert is_same_boot(mark)


def test_no_process_and_a_zombie_have_none() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
        assert birth_of(process.pid) is None
        assert birth_of(process.pid, missing_proc) is None
    assert birth_of(process.pid) is None
    assert birth_of(process.pid, missing_proc) is None


def test_without_proc_the_start_time_is_the_mark() -> None:
    mark = birth_of(os.getpid(), missing_proc)

    assert mark is not None
    assert mark != birth_of(1, missing_proc)
    assert is_same_boot(mark)


def test_a_mark_of_another_boot_is_told_apart() -> None:
    assert not is_same_boot("00000000-0000-0000-0000-000000000000 12345")


def test_a_command_with_strange_characters_is_no_obstacle(tmp_path: Path) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("a-boot\n")
    fields = " ".join(str(number) for number in range(4, 53))
    (directory / "stat").write_text(f"7 (a) Z (b) S {fields}\n")

    assert birth_of(7, tmp_path) == "a-boot 22"


def test_a_session_ends_as_a_whole_and_no_other() -> None:
    script = "echo $$; sleep 60 & echo $!; wait"
    with (
        subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as other,
        subprocess.Popen(
            ["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True
        ) as shell,
    ):
        assert shell.stdout is not None
        child = [int(shell.stdout.readline()), int(shell.stdout.readline())][1]
        kill_session(shell.pid)

        assert shell.wait() == -signal.SIGKILL
        assert shell.stdout.read() == ""  # its end: the child, which held it too, is gone
        assert birth_of(child) is None
        assert other.poll() is None
        other.kill()
