"""The handle, against workers that answer, come late, hang, die and talk nonsense."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.nvml.handle import Nvml, NvmlAbsent, NvmlUnavailable
from trackside_daemon.nvml.reading import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONG = 30.0
"""Patience for what comes at once, on a machine that is busy with other tests."""

ANSWER = 'answer = lambda n: print(\'{"gpus": [], "driver": {"number": "%d"}}\' % n, flush=True)\n'
COUNTS = ANSWER + "import sys\nfor n, _ in enumerate(sys.stdin, 1): answer(n)"
HANGS = "import sys\nsys.stdin.read()"
HANGS_AFTER_ONE = ANSWER + "import sys\nsys.stdin.readline()\nanswer(1)\nsys.stdin.read()"
STUBBORN = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{ANSWER}
sys.stdin.readline()
answer(1)
while True: signal.pause()
"""
#: Holds the second answer back until the test writes to the FIFO that is its argument.
HELD_BACK = f"""
{ANSWER}
import sys
for n, _ in enumerate(sys.stdin, 1):
    if n == 2: open(sys.argv[1]).read()
    answer(n)
"""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(clock: Clock) -> Iterator[Callable[..., Nvml]]:
    """Makes a handle whose worker runs a script, and ends it after the test."""
    handles: list[Nvml] = []

    def make(script: str, *arguments: str) -> Nvml:
        handles.append(Nvml(command=[sys.executable, "-c", script, *arguments], clock=clock))
        return handles[-1]

    yield make
    for handle in handles:
        handle.close()


def number(nvml: Nvml, patience: float = LONG) -> str:
    return nvml.read(patience).driver["number"]


def refusal(nvml: Nvml, patience: float = LONG) -> str:
    with pytest.raises(NvmlUnavailable) as caught:
        nvml.read(patience)
    text = str(caught.value)
    assert "\n" not in text
    return text


def pid(nvml: Nvml) -> int:
    assert nvml._child is not None
    return nvml._child.pid


def reap(nvml: Nvml) -> None:
    """Waits until the worker has ended, and leaves its status to the handle."""
    assert nvml._child is not None
    if nvml._child._process.returncode is None:
        os.waitid(os.P_PID, pid(nvml), os.WEXITED | os.WNOWAIT)


def test_the_simulated_worker_answers() -> None:
    nvml = Nvml(Order(simulate=8))
    assert len(nvml.read(LONG).gpus) == 8
    nvml.close()


def test_nothing_is_started_before_the_first_reading() -> None:
    assert Nvml(Order(simulate=1))._child is None


def test_one_worker_answers_every_reading(worker: Callable[..., Nvml]) -> None:
    nvml = worker(COUNTS)
    assert [number(nvml) for _ in range(3)] == ["1", "2", "3"]


def test_an_answer_that_comes_late_is_taken_by_the_next_call(worker: Callable[..., Nvml], tmp_path: Path) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo")), tmp_path / "fifo"
    os.mkfifo(release)
    number(nvml)
    assert "has not answered for 0.0 s; it is replaced after 10 s" in refusal(nvml, 0.01)
    release.write_text("")
    assert number(nvml) == "2"


def test_an_answer_that_missed_two_calls_is_asked_for_again(worker: Callable[..., Nvml], tmp_path: Path) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo")), tmp_path / "fifo"
    os.mkfifo(release)
    number(nvml)
    refusal(nvml, 0.01)
    refusal(nvml, 0.01)
    release.write_text("")
    assert number(nvml) == "3"


def test_a_worker_that_hangs_is_replaced_after_ten_seconds(worker: Callable[..., Nvml], clock: Clock) -> None:
    nvml = worker(HANGS_AFTER_ONE)
    number(nvml)
    hung = pid(nvml)
    refusal(nvml, 0.01)
    clock.now += 10.5
    assert "hung for 10 s" in refusal(nvml, 0.01)
    reap(nvml)
    clock.now += 1.5
    assert number(nvml) == "1"
    assert pid(nvml) != hung


def test_a_first_answer_has_sixty_seconds(worker: Callable[..., Nvml], clock: Clock) -> None:
    nvml = worker(HANGS)
    refusal(nvml, 0.01)
    clock.now += 59
    assert "replaced after 60 s" in refusal(nvml, 0.01)
    clock.now += 2
    assert "hung for 61 s" in refusal(nvml, 0.01)


def test_a_worker_that_ignores_sigterm_is_killed_and_never_stands_beside_another(
    worker: Callable[..., Nvml], clock: Clock
) -> None:
    nvml = worker(STUBBORN)
    number(nvml)
    refusal(nvml, 0.01)
    clock.now += 11
    refusal(nvml, 0.01)
    stubborn = pid(nvml)
    clock.now += 4.5
    assert f"waiting for the worker, process {stubborn}, to end" in refusal(nvml)
    clock.now += 1
    refusal(nvml)
    reap(nvml)
    assert number(nvml) == "1"
    assert pid(nvml) != stubborn
    os.kill(pid(nvml), signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import sys; sys.exit('no such thing')", "it exited with status 1: no such thing"),
        ("import sys; sys.stdin.readline(); sys.exit(3)", "it exited with status 3"),
        ("import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 11)", "it was killed: Segmentation fault"),
        ("import sys; sys.stdin.readline(); print('hello', flush=True); sys.stdin.read()", "JSON is malformed"),
        ("import sys; sys.stdin.readline(); print('{\"gpus\": 7}', flush=True); sys.stdin.read()", "Expected `array`"),
        ("import sys; sys.stdin.readline(); print('\\udcff'.encode('utf-8', 'surrogateescape'))", "malformed"),
        ("import sys; sys.stdin.readline(); sys.stdout.buffer.write(b'x' * 5_000_000)", "without the end of a line"),
        ("raise RuntimeError('first\\nsecond')", "status 1: second"),
    ],
)
def test_a_worker_that_fails_is_told_of_in_one_line(worker: Callable[..., Nvml], script: str, says: str) -> None:
    text = refusal(worker(script))
    assert text.startswith("the NVML worker failed: ")
    assert says in text


def test_a_worker_that_speaks_unasked_is_not_believed(worker: Callable[..., Nvml]) -> None:
    nvml = worker(ANSWER + "import sys\nfor _ in sys.stdin: print('{}\\n{}', flush=True)")
    nvml.read(LONG)
    assert "spoke without being asked" in refusal(nvml)


def test_a_command_that_cannot_be_started_is_told_of() -> None:
    nvml = Nvml(command=["/nonexistent/python"])
    assert "cannot be started: [Errno 2] No such file or directory: '/nonexistent/python'" in refusal(nvml)


def test_a_noisy_worker_is_never_stopped_by_a_full_pipe(worker: Callable[..., Nvml]) -> None:
    noisy = "import sys\nfor n, _ in enumerate(sys.stdin, 1): answer(n); sys.stderr.write('x' * 60_000 + '\\n')"
    nvml = worker(ANSWER + noisy)
    assert [number(nvml) for _ in range(4)] == ["1", "2", "3", "4"]


def test_back_off_doubles_to_a_minute_and_ends_with_a_good_reading(
    worker: Callable[..., Nvml], clock: Clock, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.write_text("")
    script = f"{ANSWER}import os, sys\nf = open(sys.argv[1], 'a'); f.write('.'); f.close()\n"
    script += "if os.path.exists(sys.argv[1] + '.mended'): sys.stdin.readline(); answer(1)\n"
    nvml = worker(script, str(starts))
    for wait in (1, 2, 4, 8, 16, 32, 60, 60):
        refusal(nvml)
        before = starts.read_text()
        reap(nvml)
        clock.now += wait - 0.5
        refusal(nvml)
        assert starts.read_text() == before
        clock.now += 0.6
    (tmp_path / "starts.mended").write_text("")
    assert number(nvml) == "1"
    refusal(nvml)
    reap(nvml)
    clock.now += 1.1
    assert number(nvml) == "1"


def test_a_reading_that_is_an_error_is_held_until_the_next_try(worker: Callable[..., Nvml], clock: Clock) -> None:
    nvml = worker('print(\'{"error": "no driver; install it", "absent": true}\')')
    for _ in range(2):
        with pytest.raises(NvmlAbsent, match="no driver; install it"):
            nvml.read(LONG)


def test_an_error_that_comes_late_is_not_lost(worker: Callable[..., Nvml], tmp_path: Path) -> None:
    release = tmp_path / "fifo"
    os.mkfifo(release)
    script = 'import sys; sys.stdin.readline(); open(sys.argv[1]).read(); print(\'{"error": "mismatch; reboot"}\')'
    nvml = worker(script, str(release))
    for _ in range(3):
        refusal(nvml, 0.01)
    release.write_text("")
    assert refusal(nvml) == "mismatch; reboot"


def test_close_ends_a_worker_that_listens_to_its_input() -> None:
    nvml = Nvml(Order(simulate=1))
    nvml.read(LONG)
    child = nvml._child
    nvml.close()
    assert child is not None
    assert child._process.returncode == 0
    assert nvml._child is None


def test_close_kills_a_worker_that_listens_to_nothing(worker: Callable[..., Nvml]) -> None:
    nvml = worker(STUBBORN)
    number(nvml)
    child = nvml._child
    nvml.close()
    assert child is not None
    assert child._process.returncode == -signal.SIGKILL
