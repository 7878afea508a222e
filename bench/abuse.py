"""Measure what two hostile users cost the honest ones: all attacks at once on a daemon within the limits of its systemd unit.

Each user floods (connections, messages without end, random frames, full batches, sessions, events), sends images, traces and
checkpoints that become large, and plans profiles. Meanwhile four trainings push, and one more measures its acknowledgements.
Run by ``make bench`` as root, who alone can be several users and make a cgroup; prints a table in Markdown.
``python bench/abuse.py SECONDS ATTACK …`` attacks for so long, by default 600 s, with these attacks alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from end_to_end.test_delivery import KEYS, PACED, complete
from end_to_end.test_history import PATIENT, QUIET, counted, stored_samples
from hostile_clients import ENDLESS_MESSAGE, MANY_CONNECTIONS, RANDOM_FRAMES
from hostile_trainings import ATTACKS, RawTraining
from process_endings import memory_cgroup
from processes import ROOT, Daemon, clean_environ, eventually, terminated
from unprivileged_users import launcher

from bench.cost import memory
from bench.table import UNAVAILABLE, head, machine, row, verdict
from trackside.wire import GATHER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECONDS = 600.0
REST_SECONDS = 10.0
TRAININGS = 4
USERS, GROUP = (61002, 61003), 61100
MEMORY = 1 << 30
LIMITS = ("prlimit", "--nofile=1024:1024")
#: What the attackers do for themselves is no cost of the daemon: their own work would fill all cores.
ATTACKER = ("nice", "-n", "10")


class Watch:
    """A thread that scrapes ten times a second, and reads the memory of the daemon and its children.

    Attributes:
        scrapes: Milliseconds of each scrape.
        most: The highest memory, in MiB.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stopping = threading.Event()
        self.reset()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Begin anew."""
        self.scrapes: list[float] = []
        self.most = 0.0

    def memory(self) -> float:
        """Return the memory now, in MiB: the sum of the resident sets."""
        total = 0.0
        for pid in self._daemon.pids().values():
            with suppress(OSError, KeyError):  # a process has just ended
                total += memory(pid)[0]
        return total

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            asked = time.perf_counter()
            assert self._daemon.get("/metrics").status_code == 200
            self.scrapes.append((time.perf_counter() - asked) * 1000)
            self.most = max(self.most, self.memory())


class Measured:
    """A thread with a training that sends a batch as often as a client does at most, and measures how long each acknowledgement takes."""

    def __init__(self, endpoint: str) -> None:
        self._stopping = threading.Event()
        self._endpoint = endpoint
        self.pushed = 0
        self.seconds: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread once everything is acknowledged."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        training = RawTraining(self._endpoint, "measured")
        self.seconds = training.acknowledged
        while not self._stopping.is_set():
            training.push({"loss": float(self.pushed)})
            self.pushed += 1
            training.poll(GATHER_SECONDS)
        training.end()
        while training.waiting:
            training.poll(0.1)
        training.close()


class Hostile:
    """A hostile user with all attacks at once.

    Args:
        user: Its number; 0 for this one.
        directory: Where the push socket is.
        seconds: How long the attacks last.
        attacks: Their names.
    """

    def __init__(self, user: int, directory: Path, seconds: float, attacks: Sequence[str]) -> None:
        self._socket = str(directory / "push.sock")
        self._prefix = [*ATTACKER, *(launcher(user, GROUP) if user else ())]
        self._until = time.monotonic() + seconds
        own = directory.parent / f"{directory.name}-{user}"
        own.mkdir(mode=0o700)
        if user:
            os.chown(own, user, user)
        self._running = [
            self._start("-m", "hostile_trainings", f"ipc://{self._socket}", attack, str(seconds), str(own))
            for attack in attacks
            if attack in ATTACKS
        ]
        if "connections" in attacks:
            self._running.append(self._start("-c", MANY_CONNECTIONS, self._socket, "300"))
        if "frames" in attacks:
            self._running.append(self._start("-c", RANDOM_FRAMES, self._socket, str(seconds), str(user)))
        self._thread = threading.Thread(target=self._send_without_end)
        if "messages" in attacks:
            self._thread.start()

    def stop(self) -> None:
        """End all attacks."""
        if self._thread.ident is not None:
            self._thread.join()
        for one in self._running:
            terminated(one)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        environ = clean_environ({"PYTHONPATH": str(ROOT / "tests")})
        command = [*self._prefix, sys.executable, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, env=environ)

    def _send_without_end(self) -> None:
        while time.monotonic() < self._until:
            for size, number in ((1 << 20, 700), (1, 6_000_000)):
                one = self._start("-c", ENDLESS_MESSAGE, self._socket, str(size), str(number))
                one.communicate()


def main() -> None:
    """Print the tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    attacks = sys.argv[2:] or [*ATTACKS, "connections", "messages", "frames"]
    machine()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp"))) / "push"
        users: Sequence[int] = USERS if os.getuid() == 0 else (0,)
        directory.mkdir(mode=0o750)
        directory.parent.chmod(0o755)
        launch, group, kills = list(LIMITS), [f"--push.group={GROUP}"], None
        if os.getuid() == 0:
            os.chown(directory, -1, GROUP)
            join = stack.enter_context(memory_cgroup(f"trackside-abuse-{os.getpid()}", MEMORY))
            kills = next(
                path for name in ("oom_control", "events") if (path := join.parent / f"memory.{name}").exists()
            )
            launch += ["sh", "-c", f'echo $$ > {join}; exec "$@"', "sh"]
        else:
            group = []
        daemon = Daemon(directory, *QUIET, *group, environ={"TRACKSIDE_CAPTURE__PLANS": "all"}, launcher=launch)
        trainings = [_train(daemon, f"honest{number}") for number in range(TRAININGS)]
        measured, watch = Measured(daemon.endpoint), Watch(daemon)
        eventually(lambda: counted(daemon, "history_samples_total") > 0)
        watch.reset()
        time.sleep(REST_SECONDS)
        columns = ("scrape, median (most), ms", "acknowledgement, median (p99, most), s")
        head("attack", *columns, "daemon and its ingest, most, MiB", "replaced ingests", "OOM kills of workers")
        _report(daemon, watch, measured.seconds, "none", kills)
        watch.reset()
        calm = len(measured.seconds)
        hostile = [Hostile(user, directory, seconds, attacks) for user in users]
        time.sleep(seconds)
        slowest, late = _report(daemon, watch, measured.seconds[calm:], f"{len(users)} users for {seconds:g} s", kills)
        for one in hostile:
            one.stop()
        watch.stop()
        steps = [int(training.communicate()[0]) for training in trainings]
        measured.stop()
        killed = daemon.process.poll() is not None
        daemon.stop()
        print(
            *(line for line in daemon.log if ("level=error" in line or "level=warning" in line) and "hook" not in line),
            sep="",
            file=sys.stderr,
        )
        exact = all(_is_exact(daemon, f"honest{number}", complete(pushed)) for number, pushed in enumerate(steps))
        exact &= _is_exact(daemon, "measured", {"loss": [(step, float(step)) for step in range(measured.pushed)]})
        head("limit", "measured", "target", "")
        samples = f"{sum(steps) * len(KEYS) + measured.pushed:,}"
        verdict(
            f"of {samples} samples of {TRAININGS + 1} honest trainings, each in the history exactly once",
            "all" if exact else "no",
            "all",
            met=exact,
        )
        verdict("p99 of their acknowledgements", f"{late:.2f} s", "<= 1 s", met=late <= 1.0)
        verdict("the slowest scrape", f"{slowest:.0f} ms", "<= 1000 ms", met=slowest <= 1000)
        verdict("OOM kills of the daemon", "1" if killed else "0", "0", met=not killed if kills else None)


def _train(daemon: Daemon, run: str) -> subprocess.Popen[str]:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_ID": run, **PATIENT})
    arguments = [sys.executable, "-c", PACED, "50", "100"]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


def _is_exact(daemon: Daemon, run: str, series: Mapping[str, Sequence[tuple[int, float]]]) -> bool:
    found = stored_samples(daemon.history, run)
    exact = found == {(0, 0, key): samples for key, samples in series.items()}
    if not exact:
        print(f"{run}: { ({key: len(samples) for key, samples in found.items()}) }", file=sys.stderr)
    return exact


def _report(
    daemon: Daemon, watch: Watch, acknowledged: Sequence[float], what: str, kills: Path | None
) -> tuple[float, float]:
    """Print what was seen; return the slowest scrape in milliseconds, and the p99 of acknowledgements in seconds."""
    slowest, late = max(watch.scrapes), statistics.quantiles(acknowledged, n=100)[98]
    words = [] if kills is None else kills.read_text().split()
    row(
        what,
        f"{statistics.median(watch.scrapes):.0f} ({slowest:.0f})",
        f"{statistics.median(acknowledged):.2f} ({late:.2f}, {max(acknowledged):.2f})",
        f"{watch.most:.0f}",
        f"{counted(daemon, 'ingest_worker_restarts_total'):g}",
        words[words.index("oom_kill") + 1] if words else UNAVAILABLE,
    )
    return slowest, late


if __name__ == "__main__":
    main()
