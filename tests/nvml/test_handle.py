"""The handle with workers that answer, are late, hang, die or violate the protocol."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from scripted_workers import (
    ANSWER,
    COUNTS,
    HANGING,
    LONG,
    STUBBORN,
    Unreapable,
    child,
    number,
    pid,
    reap,
    unavailable_reason,
)

from trackside_daemon.nvml.handle.handle import Nvml, NvmlAbsent, NvmlDown, NvmlLate, NvmlLocked, NvmlUnavailable
from trackside_daemon.nvml.reading import WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from scripted_workers import Clock, Workers

REPORTS_INTERVAL = """
import json, sys
for request in sys.stdin:
    print(json.dumps({"gpus": [], "driver": {"number": str(json.loads(request)["interval"])}}), flush=True)
"""
HANGS_AFTER_ONE = ANSWER + "import sys\nsys.stdin.readline()\nanswer(1)\nsys.stdin.read()"
#: Waits for the FIFO that is its argument, and is kept out.
LOCKED = """
import sys
sys.stdin.readline()
open(sys.argv[1]).read()
print('{"error": "another daemon", "reason": "locked"}', flush=True)
"""


def test_the_simulated_worker_answers() -> None:
    nvml = Nvml(WorkerSettings(simulate=8))
    assert len(nvml.read(LONG).gpus) == 8
    nvml.close()


def test_one_worker_answers_every_reading(worker: Workers) -> None:
    nvml = worker(COUNTS)
    assert [number(nvml) for _ in range(3)] == ["1", "2", "3"]


def test_each_request_reports_how_long_it_is_until_the_next(worker: Workers) -> None:
    nvml = worker(REPORTS_INTERVAL)
    nvml.interval = 2.5
    assert number(nvml) == "2.5"
    nvml.interval = 0.1
    assert number(nvml) == "0.1"


def test_a_worker_that_hangs_is_replaced_after_ten_seconds(worker: Workers, clock: Clock) -> None:
    nvml = worker(HANGS_AFTER_ONE)
    number(nvml)
    hung = pid(nvml)
    unavailable_reason(nvml, 0.01)
    clock.now += 10.5
    assert "hung for 10 s" in unavailable_reason(nvml, 0.01)
    assert nvml.restarts["timeout"] == 1
    reap(nvml)
    clock.now += 1.5
    assert number(nvml) == "1"
    assert pid(nvml) != hung


def test_a_first_answer_has_sixty_seconds(worker: Workers, clock: Clock) -> None:
    nvml = worker(HANGING)
    unavailable_reason(nvml, 0.01)
    clock.now += 59
    assert "replaced after 60 s" in unavailable_reason(nvml, 0.01)
    clock.now += 2
    assert "hung for 61 s" in unavailable_reason(nvml, 0.01)


def test_a_worker_that_ignores_sigterm_is_killed_and_never_runs_next_to_another(worker: Workers, clock: Clock) -> None:
    nvml = worker(STUBBORN)
    number(nvml)
    unavailable_reason(nvml, 0.01)
    clock.now += 11
    unavailable_reason(nvml, 0.01)
    stubborn = pid(nvml)
    clock.now += 4.5
    assert f"waiting for the worker, process {stubborn}, to end" in unavailable_reason(nvml)
    clock.now += 1
    unavailable_reason(nvml)
    reap(nvml)
    assert number(nvml) == "1"
    assert pid(nvml) != stubborn
    os.kill(pid(nvml), signal.SIGKILL)


def test_a_worker_that_sigkill_does_not_end_is_stuck_and_stays_alone(worker: Workers, clock: Clock) -> None:
    nvml = worker(HANGING)
    unavailable_reason(nvml, 0.01)
    stuck_child = child(nvml)
    process = Unreapable(stuck_child)
    for wait, stuck in ((61, False), (5.5, False), (1.5, True), (3600, True)):
        clock.now += wait
        text = unavailable_reason(nvml, 0.01)
        assert nvml.stuck is stuck
    assert "ignores even SIGKILL: it hangs in the kernel" in text
    assert child(nvml) is stuck_child
    assert process.signals[:2] == ["TERM", "KILL"]
    process.release()
    reap(nvml)
    unavailable_reason(nvml, 0.01)
    assert child(nvml) is not stuck_child
    assert not nvml.stuck


@pytest.mark.parametrize(
    ("script", "message"),
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
def test_a_worker_that_fails_is_reported_in_one_line(worker: Workers, script: str, message: str) -> None:
    text = unavailable_reason(worker(script))
    assert text.startswith("the NVML worker failed: ")
    assert message in text


def test_a_worker_that_writes_without_a_request_is_replaced(worker: Workers) -> None:
    nvml = worker(ANSWER + "import sys\nfor _ in sys.stdin: print('{}\\n{}', flush=True)")
    nvml.read(LONG)
    assert "wrote without a request" in unavailable_reason(nvml)


def test_a_command_that_cannot_be_started_is_reported() -> None:
    nvml = Nvml(command=["/nonexistent/python"])
    assert "cannot be started: [Errno 2] No such file or directory: '/nonexistent/python'" in unavailable_reason(nvml)


def test_a_noisy_worker_is_never_stopped_by_a_full_pipe(worker: Workers) -> None:
    noisy = "import sys\nfor n, _ in enumerate(sys.stdin, 1): answer(n); sys.stderr.write('x' * 60_000 + '\\n')"
    nvml = worker(ANSWER + noisy)
    assert [number(nvml) for _ in range(4)] == ["1", "2", "3", "4"]


def _why(nvml: Nvml, patience: float = LONG) -> NvmlUnavailable:
    with pytest.raises(NvmlUnavailable) as caught:
        nvml.read(patience)
    return caught.value


def _script_printing(reading: str) -> str:
    return f"import sys; sys.stdin.readline(); print('{reading}', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(3)", "exit"),
        ("import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 11)", "crash"),
        (_script_printing("hello"), "error"),
        (_script_printing('{"error": "18", "reason": "lib_rm_version_mismatch"}'), "library_mismatch"),
        (_script_printing('{"error": "15", "reason": "gpu_is_lost"}'), "gpu_lost"),
        (_script_printing('{"error": "999", "reason": "unknown"}'), "error"),
        (_script_printing('{"error": "9", "absent": true, "reason": "no_driver"}'), ""),
        (_script_printing('{"error": "no GPU", "absent": true, "reason": "no_gpu"}'), ""),
        (_script_printing('{"error": "another daemon", "reason": "locked"}'), ""),
    ],
)
def test_replaced_workers_are_counted_by_reason_except_without_a_gpu(worker: Workers, script: str, reason: str) -> None:
    nvml = worker(script)
    unavailable_reason(nvml)
    unavailable_reason(nvml)
    assert {name: times for name, times in nvml.restarts.items() if times} == ({reason: 1} if reason else {})


@pytest.mark.parametrize("reason", ["no_driver", "locked"])
def test_a_machine_with_nothing_to_read_is_tried_again_after_five_seconds_then_less_often(
    worker: Workers, clock: Clock, tmp_path: Path, reason: str
) -> None:
    starts = tmp_path / "starts"
    nothing = f'{{"error": "nothing", "absent": {str(reason == "no_driver").lower()}, "reason": "{reason}"}}'
    # A worker that ended before its request was written would count as failed.
    script = f"import sys\nsys.stdin.readline()\nopen(sys.argv[1], 'a').write('.')\nprint('{nothing}')"
    nvml = worker(script, str(starts))
    for times, wait in enumerate((5, 10, 20, 40, 60, 60), 1):
        unavailable_reason(nvml)
        reap(nvml)
        clock.now += wait - 0.5
        unavailable_reason(nvml)
        assert starts.read_text() == "." * times
        clock.now += 0.6


def test_back_off_doubles_to_a_minute_and_ends_with_a_good_reading(
    worker: Workers, clock: Clock, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.write_text("")
    script = f"{ANSWER}import os, sys\nf = open(sys.argv[1], 'a'); f.write('.'); f.close()\n"
    script += "if os.path.exists(sys.argv[1] + '.mended'): sys.stdin.readline(); answer(1)\n"
    nvml = worker(script, str(starts))
    for wait in (1, 2, 4, 8, 16, 32, 60, 60):
        unavailable_reason(nvml)
        before = starts.read_text()
        reap(nvml)
        clock.now += wait - 0.5
        unavailable_reason(nvml)
        assert starts.read_text() == before
        clock.now += 0.6
    (tmp_path / "starts.mended").write_text("")
    assert number(nvml) == "1"
    unavailable_reason(nvml)
    reap(nvml)
    clock.now += 1.1
    assert number(nvml) == "1"


def test_nvml_is_down_when_it_refuses_to_begin_and_not_when_a_worker_that_has_begun_fails(
    worker: Workers, clock: Clock
) -> None:
    refuses = """print('{"error": "999", "reason": "unknown"}', flush=True)"""
    for nvml, kind in (
        (worker(f"import sys; sys.stdin.readline(); {refuses}"), NvmlDown),
        (
            worker(f"{ANSWER}import sys; sys.stdin.readline(); answer(1); sys.stdin.readline(); {refuses}"),
            NvmlUnavailable,
        ),
    ):
        with suppress(NvmlUnavailable):
            nvml.read(LONG)
        assert type(_why(nvml)) is kind


def test_nvml_is_down_when_it_hangs_past_its_deadline(worker: Workers, clock: Clock) -> None:
    nvml = worker(HANGS_AFTER_ONE)
    number(nvml)
    for ahead, kind in ((0, NvmlLate), (9, NvmlLate), (2, NvmlDown)):
        clock.now += ahead
        assert type(_why(nvml, 0.01)) is kind


@pytest.mark.parametrize(("interval", "silence"), [(1, 60), (60, 120)])
def test_nvml_is_down_when_no_worker_has_given_a_reading_for_a_minute(
    worker: Workers, clock: Clock, interval: int, silence: int
) -> None:
    nvml = worker("raise SystemExit(3)")
    nvml.interval = interval
    assert type(_why(nvml)) is NvmlUnavailable
    clock.now += silence - 1
    assert type(_why(nvml)) is NvmlUnavailable
    clock.now += 2
    assert type(_why(nvml)) is NvmlDown


def test_gpus_that_are_left_to_another_daemon_are_never_down(worker: Workers, clock: Clock, tmp_path: Path) -> None:
    nvml, release = worker(LOCKED, str(tmp_path / "fifo")), tmp_path / "fifo"
    os.mkfifo(release)
    for _ in range(3):
        assert type(_why(nvml, 0.01)) is NvmlLate
        release.write_text("")
        assert type(_why(nvml)) is NvmlLocked
        reap(nvml)
        clock.now += 100


def test_a_reading_that_is_an_error_is_held_until_the_next_try(worker: Workers, clock: Clock) -> None:
    nvml = worker('print(\'{"error": "no driver; install it", "absent": true}\')')
    for _ in range(2):
        with pytest.raises(NvmlAbsent, match="no driver; install it"):
            nvml.read(LONG)


def test_an_error_that_comes_late_is_not_lost(worker: Workers, tmp_path: Path) -> None:
    release = tmp_path / "fifo"
    os.mkfifo(release)
    script = 'import sys; sys.stdin.readline(); open(sys.argv[1]).read(); print(\'{"error": "mismatch; reboot"}\')'
    nvml = worker(script, str(release))
    for _ in range(3):
        unavailable_reason(nvml, 0.01)
    release.write_text("")
    assert unavailable_reason(nvml) == "mismatch; reboot"


def test_close_ends_a_worker_that_listens_to_its_input_and_kills_one_that_listens_to_nothing(worker: Workers) -> None:
    for script, ended in ((COUNTS, 0), (STUBBORN, -signal.SIGKILL)):
        nvml = worker(script)
        number(nvml)
        last = child(nvml)
        nvml.close()
        assert last.status == ended
