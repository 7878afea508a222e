"""Exits and forks of a training process next to the real daemon: whole scripts, with warnings as errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
from client.router import pushed
from processes import DEADLINE, Daemon, clean_environ, eventually, lasting_daemon

import trackside
from trackside.transport.orphaned_spool import orphaned_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.router import Router

Process = subprocess.Popen[str]
FORK_WARNS = "ignore:This process:DeprecationWarning"
"""From Python 3.12 on, os.fork warns of any thread, and the client has one."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for the whole file; each script's name is a separate run."""
    with lasting_daemon() as one:
        yield one


@pytest.fixture
def start(tmp_path: Path, daemon: Daemon) -> Iterator[Callable[..., Process]]:
    """A function that runs code as a script *name*.py; *name* is also the name of the run.

    A *fresh* process executes Python, for what the interpreter itself prints or does at its end.
    """
    started: list[Process] = []

    def run(name: str, code: str, endpoint: str = daemon.endpoint, *, fresh: bool = False, **environ: str) -> Process:
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(code))
        process = (subprocess.Popen if fresh else processes.start)(
            [sys.executable, "-W", "error", "-W", FORK_WARNS, str(script)],
            env=clean_environ({"TRACKSIDE_ENDPOINT": endpoint, **environ}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE)


@pytest.fixture
def finished(start: Callable[..., Process]) -> Callable[..., str]:
    """A function that runs code until it exits without an error message, and returns its output."""

    def run(name: str, code: str, *, status: int = 0, **more: Any) -> str:
        process = start(name, code, **more)
        output, errors = process.communicate(timeout=DEADLINE)
        assert (errors, process.returncode) == ("", status)
        return output

    return run


def state(daemon: Daemon, run: str) -> str | None:
    """Return the state of a run, by its name, as the daemon reports it."""
    runs = {one["name"]: one for one in daemon.api("runs").json()["runs"]}
    return runs[run]["state"] if run in runs else None


def number(daemon: Daemon, family: str, run: str) -> float | None:
    return daemon.series().get(f'trackside_training_{family}{{rank="0",run="{run}"}}')


def comes_to(daemon: Daemon, run: str, expected: str) -> None:
    """Wait until the daemon reports a state: it waits for a process's exit status, which comes after its last message."""
    eventually(lambda: state(daemon, run) == expected)


def test_all_runs_of_a_script_that_ends_are_finished_but_one_that_reports_another_end(
    daemon: Daemon, finished: Callable[..., str]
) -> None:
    finished(
        "ends",
        """
        import trackside
        for step in range(1000):
            trackside.push(step=step, loss=1 / (step + 1))
        runs = [trackside.init(f"several-{number}") for number in range(4)]
        for number, run in enumerate(runs):
            run.push(loss=number)
        trackside.finish("stopped")
        """,
    )
    for one in range(4):
        comes_to(daemon, f"several-{one}", "finished" if one < 3 else "stopped")
    assert [number(daemon, "loss", f"several-{one}") for one in range(4)] == [0, 1, 2, 3]
    comes_to(daemon, "ends", "finished")
    assert number(daemon, "loss", "ends") == 0.001
    assert number(daemon, "client_pushes_total", "ends") == number(daemon, "steps_total", "ends") == 1000


def test_a_script_that_dies_of_an_exception_has_failed_and_shows_it_as_ever(
    daemon: Daemon, start: Callable[..., Process]
) -> None:
    process = start(
        "dies",
        """
        import trackside
        trackside.push(loss=0.5)
        raise ZeroDivisionError("the learning rate")
        """,
        fresh=True,
    )
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    lines = errors.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: the learning rate")
    assert len(lines) == 4
    assert output == ""
    comes_to(daemon, "dies", "failed")
    (raised,) = [one for one in daemon.api("events?run=dies").json()["events"] if one["kind"] == "exception"]
    assert (raised["fields"]["type"], raised["fields"]["text"]) == ("ZeroDivisionError", "the learning rate")
    assert raised["fields"]["traceback"].splitlines() == lines


def test_an_excepthook_of_the_scripts_own_is_called_still(daemon: Daemon, start: Callable[..., Process]) -> None:
    process = start(
        "hooked",
        """
        import sys, trackside
        sys.excepthook = lambda *_: print("mine")
        trackside.push(loss=0.5)
        raise ValueError
        """,
    )
    assert process.communicate(timeout=DEADLINE) == ("mine\n", "")
    comes_to(daemon, "hooked", "failed")


def test_an_error_inside_a_with_block_or_a_thread_is_not_the_processs(
    daemon: Daemon, finished: Callable[..., str]
) -> None:
    finished(
        "inside",
        """
        import threading, trackside
        threading.excepthook = lambda _: None
        try:
            with trackside.init("inside-block") as run:
                run.push(loss=0.5)
                raise ValueError
        except ValueError:
            pass
        trackside.init("inside-thread").push(loss=0.5)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        """,
    )
    comes_to(daemon, "inside-block", "failed")
    comes_to(daemon, "inside-thread", "finished")


@pytest.mark.parametrize(
    ("end", "requested"),
    [
        ("sys.exit('no data in /data')", "exit status 1: no data in /data"),
        ("sys.exit(3)", "exit status 3"),
        ("sys.exit(0)", ""),
        ("caught(3); sys.exit()", ""),
        ("caught(3); trackside.push(loss=0.25)", ""),
        ("thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()", ""),
    ],
)
def test_the_argument_of_sys_exit_is_sent_for_a_process_with_an_unseen_end(
    start: Callable[..., Process], start_router: Callable[[], Router], place: Path, end: str, requested: str
) -> None:
    router = start_router()
    process = start(
        "exits",
        f"""
        import sys, threading, trackside
        def caught(status):
            try:
                sys.exit(status)
            except SystemExit:
                pass
        trackside.push(loss=0.5)
        {end}
        """,
        endpoint=f"ipc://{place}/push.sock",
    )
    (messages,) = router.serve().values()
    process.communicate(timeout=DEADLINE)
    bye = messages[-1].body
    assert (bye.status, bye.cause, bye.provisional, bye.requested) == ("finished", "", True, requested)


def test_without_a_daemon_a_script_ends_at_once_whatever_it_has_pushed_and_it_is_on_disk(
    finished: Callable[..., str], nowhere: str, spool: Path
) -> None:
    finished(
        "alone",
        """
        import logging, trackside
        logging.disable()
        runs = [trackside.init() for _ in range(10)]
        for run in runs:
            for step in range(1000):
                run.push(step=step, loss=0.5)
        """,
        endpoint=nowhere,
        TRACKSIDE_FLUSH_TIMEOUT="inf",
    )
    assert len(list(orphaned_sessions([spool], None))) == 10


def test_what_a_short_script_has_pushed_without_a_daemon_is_reported_at_its_end(
    start: Callable[..., Process], nowhere: str, spool: Path
) -> None:
    process = start("alone", "import trackside; trackside.push(loss=0.5)", endpoint=nowhere)
    output, errors = process.communicate(timeout=DEADLINE)
    assert (output, process.returncode) == ("", 0)
    assert errors == (
        f"trackside: no daemon found at {nowhere} (not found); training goes on, and what is pushed waits for one in {spool},"
        f" 256 MiB at most; start it with: trackside daemon --push.endpoint={nowhere}\n"
    )


def test_a_process_ends_when_the_spool_has_what_it_pushed_though_that_takes_longer_than_the_flush(
    start: Callable[..., Process], nowhere: str, spool: Path
) -> None:
    code = """
    import time, trackside
    from trackside.transport.outbox import Outbox
    retire = Outbox.retire
    def later(*arguments):
        time.sleep(1.5)
        retire(*arguments)
    Outbox.retire = later
    for step in range(100):
        trackside.push(step=step, loss=0.5)
    """
    process = start("busy", code, endpoint=nowhere, TRACKSIDE_FLUSH_TIMEOUT="0.1")
    process.communicate(timeout=DEADLINE)
    (left,) = orphaned_sessions([spool], None)
    assert (process.returncode, left.backlog or bool(left.pending)) == (0, True)


def test_ctrl_c_while_the_end_is_being_sent_cuts_it_short_without_a_traceback(
    router: Router, start: Callable[..., Process], spool: Path
) -> None:
    process = start(
        "impatient",
        """
        import trackside
        trackside.init("one").push(loss=0.5)
        trackside.init("two").push(loss=0.5)
        """,
        endpoint=router.endpoint,
        TRACKSIDE_FLUSH_TIMEOUT="inf",
    )
    while (message := router.next()) is not None and message.kind != "bye":
        router.answer(message, "welcome" if message.kind == "hello" else "ack", message.number)
    assert message is not None, "it did not wait for anybody"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=DEADLINE) == ("", "")
    assert process.returncode == 0
    assert len(list(orphaned_sessions([spool], None))) == 2


def test_the_end_of_a_run_that_was_not_waited_for_is_sent_before_the_process_ends(
    router: Router, start: Callable[..., Process], spool: Path
) -> None:
    process = start(
        "trials",
        """
        import trackside
        run = trackside.init("one")
        run.push(loss=0.5)
        run.queue.close("finished", timeout=0)
        print("ended", flush=True)
        """,
        endpoint=router.endpoint,
        TRACKSIDE_FLUSH_TIMEOUT="inf",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"
    router.serve()
    assert process.communicate(timeout=DEADLINE) == ("", "")
    assert list(orphaned_sessions([spool], None)) == []


def test_pushing_until_the_very_last_moment_makes_no_noise(daemon: Daemon, finished: Callable[..., str]) -> None:
    finished(
        "until-last",
        """
        import atexit, sys, threading, trackside

        class Late:
            def __del__(self):
                trackside.push(late=1.0, text="none")
                trackside.finish()
                trackside.push(later=1.0)

        def forever():
            while True:
                trackside.push(loss=0.5)

        atexit.register(trackside.push, before=1.0)
        trackside.push(loss=0.5)
        atexit.register(trackside.push, after=1.0)
        threading.Thread(target=forever, daemon=True).start()
        late = Late()
        sys.late = Late()
        """,
        fresh=True,
    )
    comes_to(daemon, "until-last", "finished")


def test_what_exit_handlers_push_arrives_unless_they_were_registered_before_ours(
    daemon: Daemon, finished: Callable[..., str]
) -> None:
    output = finished(
        "handlers",
        """
        import atexit

        def late():
            run = trackside.init("too-late")
            run.push(loss=0.5)
            run.finish()
            print(run.name)

        atexit.register(late)
        import trackside
        atexit.register(lambda: trackside.push(step=9, best=0.125))
        trackside.push(step=8, loss=0.5)
        """,
        fresh=True,
    )
    assert output == "too-late\n"
    comes_to(daemon, "handlers", "finished")
    assert number(daemon, "step", "handlers") == 9
    assert state(daemon, "too-late") is None


FORKS = """
import os, sys, threading, trackside
for step in range(100):
    trackside.push(step=step, loss=0.5, samples=1)
    if step % 10 == 0:
        child = os.fork()
        if child == 0:
            for other in range(1000, 1100):
                trackside.push(step=other, loss=9.0, samples=1000, text="no number")
            trackside.finish("failed")
            {leave}
        assert os.waitpid(child, 0)[1] == 0
trackside.push(step=100, loss=0.25)
"""


@pytest.mark.parametrize(
    "leave",
    [
        "os._exit(0)",
        "break",
        pytest.param("sys.exit(0)", marks=pytest.mark.only_soak),
        pytest.param("os.fork() and os.wait(); sys.exit(0)", marks=pytest.mark.only_soak),
    ],
)
def test_a_forked_child_sends_nothing_and_ends_nothing(
    daemon: Daemon, finished: Callable[..., str], leave: str
) -> None:
    name = "forks-" + "".join(filter(str.isalpha, leave))
    finished(name, FORKS.format(leave=leave))
    comes_to(daemon, name, "finished")
    assert number(daemon, "loss", name) == 0.25
    assert number(daemon, "samples_total", name) == 100
    assert number(daemon, "steps_total", name) == number(daemon, "client_pushes_total", name) == 101
    assert number(daemon, "client_dropped_total", name) == 0
    # On a busy machine, an acknowledgement may come so late that the parent resends.
    assert daemon.series()["trackside_ingest_duplicates_total"] == 0 or number(daemon, "client_resent_total", name)


def test_workers_that_a_pool_ends_by_sigterm_have_finished(daemon: Daemon, start: Callable[..., Process]) -> None:
    process = start(
        "pool",
        """
        import multiprocessing, sys
        def work(step):
            import trackside
            trackside.push(step=step, loss=0.5)
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.map(work, range(3))
                sys.stdin.readline()
        """,
        TRACKSIDE_RUN_ID="pool-1",
        TRACKSIDE_RUN_NAME="pool",
    )
    comes_to(daemon, "pool", "running")
    assert process.communicate("\n", timeout=DEADLINE)[1] == ""
    eventually(lambda: state(daemon, "pool") != "running")
    assert state(daemon, "pool") == "finished"


def test_a_forked_child_that_asks_for_it_has_a_run_of_its_own(daemon: Daemon, finished: Callable[..., str]) -> None:
    finished(
        "parent",
        """
        import os, sys, trackside
        trackside.push(loss=0.5)
        child = os.fork()
        if child == 0:
            trackside.push(loss=9.0)
            trackside.init("child")
            trackside.push(loss=0.25)
            grandchild = os.fork()
            if grandchild == 0:
                trackside.init("grandchild").push(loss=0.125)
                sys.exit(0)
            os.waitpid(grandchild, 0)
            sys.exit(0)
        os.waitpid(child, 0)
        trackside.push(loss=0.75)
        """,
    )
    for name, loss in (("parent", 0.75), ("child", 0.25), ("grandchild", 0.125)):
        comes_to(daemon, name, "finished")
        assert number(daemon, "loss", name) == loss


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="a second interpreter of 3.12.1 crashes when it imports msgspec"
)
def test_a_second_interpreter_of_the_process_pushes_nothing_and_warns_once(
    daemon: Daemon, start: Callable[..., Process]
) -> None:
    new = sys.version_info >= (3, 13)
    code = f"""
        import trackside, {"_interpreters" if new else "_xxsubinterpreters"} as interpreters
        trackside.push(step=0, loss=0.5)
        interpreters.run_string(interpreters.create({"'legacy'" if new else "isolated=False"}), '''if True:
            import trackside
            for step in range(1, 4):
                with trackside.phase("eval"):
                    trackside.push(step=step, loss=9.0)
        ''')
        trackside.push(step=4, loss=0.25)
        """
    process = start("second", code, fresh=True)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors.count("trackside: nothing can be sent, training goes on: ")) == (0, 1), errors
    comes_to(daemon, "second", "finished")
    assert number(daemon, "loss", "second") == 0.25
    assert number(daemon, "client_pushes_total", "second") == 2


def test_a_program_that_is_started_inherits_no_socket(finished: Callable[..., str]) -> None:
    output = finished(
        "starts",
        """
        import os, subprocess, sys, trackside
        trackside.push(loss=0.5)
        run = trackside.init()
        while not run.queue.session.greeted:
            pass
        subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, check=True)
        """,
    )
    assert "socket:" not in output
    assert "eventfd" not in output


FIRST_USES = {
    "Checkpoints": "del sys.modules['torch']; trackside.Checkpoints('checkpoints').save({'x': 1}, 1)",
    "LogFilter": "trackside.LogFilter().filter(logging.makeLogRecord({}))",
    "Run": "trackside.Run",
    "alert": "trackside.alert('loss is not falling')",
    "correlation_id": "trackside.correlation_id()",
    "data": "list(trackside.data([1, 2]))",
    "event": "trackside.event('resume', path='x')",
    "finish": "trackside.finish()",
    "init": "trackside.init('name', config={'lr': 0.1}, tags=['a'])",
    "log": "trackside.log({'loss': 1.0})",
    "log_histogram": "trackside.log_histogram('h', [1.0, 2.0])",
    "log_image": "trackside.log_image('i', image)",
    "log_table": "trackside.log_table('t', [{'a': 1}])",
    "log_text": "trackside.log_text('t', 'text')",
    "observe": "trackside.observe(Model(), activations='*', attention='*')",
    "phase": "trackside.phase('eval').__enter__()",
    "push": "trackside.push(step=0, loss=1.0)",
    "resume_path": "trackside.resume_path()",
    "summary": "trackside.summary(best=1.0)",
    "watch": "trackside.watch(Model(), layers='*')",
}
"""A first use of each public name. PyTorch is a stand-in, as it would import most of the standard library."""


def test_no_first_use_raises_without_descriptors(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    assert FIRST_USES.keys() == set(trackside.__all__)
    script = tmp_path / "uses.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import logging, os, resource, sys, traceback, types, warnings
            import trackside
            sys.modules["torch"] = types.SimpleNamespace(compiler=types.SimpleNamespace(is_compiling=bool))
            class Model:
                def named_parameters(self):
                    return []
            image = types.SimpleNamespace(shape=(1, 1), tolist=lambda: [[0.5]])
            logging.getLogger("trackside").addHandler(logging.NullHandler())
            logging.getLogger("trackside").propagate = False
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            def use(code, left):
                taken = []
                try:
                    while True:
                        taken.append(os.dup(0))
                except OSError:
                    pass
                for descriptor in taken[:left]:
                    os.close(descriptor)
                try:
                    exec(code)
                except BaseException as error:
                    print(code, "with", left, repr(error), flush=True)
                os._exit(0)
            warnings.simplefilter("ignore")
            for code in {list(FIRST_USES.values())}:
                for left in {[0, 3, 12, 25, *range(26)][: count(4, 30)]}:
                    if not (pid := os.fork()):
                        use(code, left)
                    os.waitpid(pid, 0)
            """
        )
    )
    environ = clean_environ({"TRACKSIDE_ENDPOINT": f"ipc://{tmp_path}/nobody.sock", "TRACKSIDE_SPOOL": str(tmp_path)})
    command = [sys.executable, "-B", str(script)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


SHORT = """
import logging, os, resource, sys, time, trackside
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
logging.getLogger("trackside").addHandler(logging.StreamHandler(sys.stdout))
if {begun}:
    run = trackside.init()
    run.push(step=1, loss=0.5)
    while not run.queue.session.spool.last:  # then the sender has all the descriptors that it needs
        time.sleep(0.01)
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for descriptor in taken[:{left}]:
    os.close(descriptor)
for step in range(2, 1000):
    trackside.push(step=step, loss=0.5)
print("short", flush=True)
os.read(0, 1)
for descriptor in taken[{left}:]:
    os.close(descriptor)
trackside.push(step=1000, loss=0.25)
"""


@pytest.mark.parametrize(
    ("left", "begun"),
    [
        *((left, False) for left in (0, 3)),
        *((left, True) for left in (0, 2)),
        *(pytest.param(left, left < 10, marks=pytest.mark.only_soak) for left in (1, 3, 5, 8, 20)),
    ],
)
def test_descriptors_that_run_short_cost_nothing_that_was_pushed(
    start: Callable[..., Process], start_router: Callable[[], Router], place: Path, left: int, begun: bool
) -> None:
    code = SHORT.format(left=left, begun=begun)
    process = start("short", code, endpoint=f"ipc://{place}/push.sock", TRACKSIDE_FLUSH_TIMEOUT="30")
    assert process.stdout is not None
    assert process.stdin is not None
    printed = "".join(takewhile(lambda line: line != "short\n", process.stdout))
    router = start_router()
    process.stdin.write("\n")
    process.stdin.flush()
    (messages,) = router.serve().values()
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    # A process that has begun has what it needs; one that begins now reports it.
    assert begun or "trackside: nothing can be sent, training goes on: " in printed + output
    assert [step for step, _ in pushed(messages)] == list(range(1 if begun else 2, 1001))
    assert messages[-1].body.totals.dropped == 0
