"""`trackside demo`: the daemon and the training beside it, and what `/metrics` says of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
from contextlib import closing, suppress
from ipaddress import ip_address
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import URLError
from uuid import uuid4

from trackside_daemon.beside import Child, stop_all
from trackside_daemon.demo.staging import Staging
from trackside_daemon.demo.troubles import TROUBLES
from trackside_daemon.ingest.endpoint import push_path, token_path
from trackside_daemon.web.address import AddressError, listen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.config import Config
    from trackside_daemon.demo.troubles import Trouble

TRAINING = "trackside_daemon.demo.train"
OFF = {"TRACKSIDE_ALERTS__OFF": "ThroughputRegression@demo,SlowStep@demo"}
"""A demo shares its one core with whatever else the machine does: that its steps take longer then is no news."""
READY_SECONDS = 30.0
REPORT_SECONDS = 2.0
DRIVER = Path("/proc/driver/nvidia/version")
_LINE = re.compile(r"trackside_training_(\w+)\{(.*)\} (\S+)")

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever $http_proxy says

Numbers = dict[str, float]


class _Show(NamedTuple):
    """What is shown: where, with what history, and what goes wrong."""

    config: Config
    address: str
    history: str
    steps: int | None
    trouble: str
    after: float


class _Stop:
    """Set by a signal. A handler that sets a `threading.Event` hangs when it cuts into a wait for it."""

    def __init__(self) -> None:
        self._set = False
        self._told: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """From now on."""
        self._set = True
        self._told.put(None)

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long; whether it is."""
        if not self._set:
            with suppress(Empty):
                self._told.get(timeout=seconds)
        return self._set


def run(config: Config, steps: int | None, trouble: str = "", after: float = 15.0) -> int:
    """Run until the training ends or Ctrl-C.

    Args:
        config: Only where the daemon will listen is read here.
        steps: Of the training; None for no end.
        trouble: What goes wrong in it, a name of `TROUBLES`; empty for nothing.
        after: Seconds of training before it does.

    Returns:
        The exit status: 0 when stopped as asked, the daemon's when it cannot start, else the training's.
    """
    stopped = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        listens, address = _free_address(config.web.listen_address)
    except AddressError as error:
        sys.stderr.write(f"trackside: {str(error).replace('--web.listen-address', 'TRACKSIDE_WEB__LISTEN_ADDRESS')}\n")
        return 2
    simulated = [] if DRIVER.exists() else ["--collector.gpu.simulate=2"]
    for name, value in (OFF | dict(TROUBLES[trouble].settings if trouble else {})).items():
        os.environ.setdefault(name, value)
    level = "error" if trouble else "warning"  # what fires is said here
    children: list[Child] = []
    with TemporaryDirectory(prefix="trackside-demo-") as history:  # apart from that of real runs
        os.environ["TRACKSIDE_SPOOL"] = history  # nor is anything of a demo that was killed a later daemon's to take
        flags = [f"--web.listen-address={listens}", f"--log.level={level}", f"--storage.path={history}", *simulated]
        children.append(Child("trackside_daemon", "daemon", *flags))
        try:
            status = _run(_Show(config, address, history, steps, trouble, after), children, stopped)
        finally:
            stop_all(children)
    if stopped.is_set():
        return 0
    return 1 if status < 0 else status  # a signal that nobody here sent


def _run(show: _Show, children: list[Child], stopped: _Stop) -> int:
    """Train and report until the training ends; whoever ends first, the last word is a summary."""
    daemon, address = children[0], show.address
    if not _is_ready(address, daemon, stopped):
        if daemon.status is None and not stopped.is_set():
            _say(f"trackside: the daemon did not answer at http://{address}/-/ready within {READY_SECONDS:g} s")
            daemon.stop()
            return 1
        return daemon.stop()
    _introduce(show)
    begun = time.monotonic()
    ranks = _start(show)
    children += ranks
    staging = _staged(show, ranks)
    while (staging.begun or _trains(ranks)) and daemon.status is None and not stopped.wait(REPORT_SECONDS):
        _look(address, staging, trains=_trains(ranks))
    if daemon.status is not None and not stopped.is_set():
        _say(f"\n  The daemon ended by itself, with status {daemon.status}.")
    for rank in ranks:
        rank.send(signal.SIGTERM)  # all of them before one is waited for: they wait for each other
    status = max((rank.stop() for rank in ranks), key=abs)
    _summarise(_scrape(address), time.monotonic() - begun)
    return daemon.stop() or status


def _look(address: str, staging: Staging, *, trains: bool) -> None:
    numbers = _scrape(address)
    if trains:
        _report(numbers)
    for text in staging.look(numbers.get("step", 0.0)):
        _say(text)


def _trains(ranks: Sequence[Child]) -> bool:
    return any(rank.status is None for rank in ranks)


def _start(show: _Show) -> list[Child]:
    """The ranks of the training."""
    flags = [*(["--steps", str(show.steps)] if show.steps else [])]
    flags += [f"--trouble={show.trouble}", f"--meet={show.history}/ranks"]
    count = TROUBLES[show.trouble].ranks if show.trouble else 1
    reach = _reach(show.config)
    if count > 1:
        reach |= {"TRACKSIDE_RUN_ID": uuid4().hex, "WORLD_SIZE": str(count)}
    ranks = range(count)
    return [Child(TRAINING, *flags, environ=reach | ({"RANK": str(rank)} if count > 1 else {})) for rank in ranks]


def _staged(show: _Show, ranks: Sequence[Child]) -> Staging:
    """The trouble, of the last rank; without one nothing ever begins."""
    token = _token(show.config)

    def ask(path: str) -> str | None:
        return _get(show.address, path, token)

    trouble = TROUBLES.get(show.trouble)
    return Staging(trouble, ranks[-1], show.after, ask, show.history)


def _free_address(wanted: str) -> tuple[str, str]:
    """Where the daemon is to listen, and where it is then reached.

    It is tried before the daemon starts, so that another server's answers are never taken for the daemon's.

    Raises:
        AddressError: It is taken, or no address.
    """
    with closing(listen(wanted)) as listener:
        host, port = listener.getsockname()[:2]
    listens = f"{wanted.rpartition(':')[0]}:{port}"
    return listens, f"127.0.0.1:{port}" if ip_address(host).is_unspecified else listens


def _is_ready(address: str, daemon: Child, stopped: _Stop) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while daemon.status is None and time.monotonic() < deadline:
        if _get(address, "/-/ready") is not None:
            return True
        if stopped.wait(0.1):
            return False
    return False


def _token(config: Config) -> str:
    return token_path(config.push.endpoint, os.environ, os.getuid()).read_text().strip()


def _introduce(show: _Show) -> None:
    address, token = show.address, _token(show.config)
    _say(
        f"""
  trackside is running, and beside it a small language model learns to write Python's help pages.

    dashboard   http://{address}/#token={token}
    metrics     http://{address}/metrics
    try         curl -s http://{address}/metrics | grep trackside_training
    scrape      scrape_configs: [{{job_name: trackside, static_configs: [{{targets: ["{address}"]}}]}}]
"""
        + (
            "\n  No NVIDIA driver here, so two GPUs are simulated, and marked so in trackside_gpu_info.\n"
            if not DRIVER.exists()
            else ""
        )
        + (_foretell(TROUBLES[show.trouble], show.after) if show.trouble else "")
        + "\n  Ctrl-C ends it. What /metrics says now and then:\n"
    )


def _foretell(trouble: Trouble, after: float) -> str:
    note = f"  {trouble.note}\n" if trouble.note else ""
    return f"\n  After {after:g} s of training it goes wrong: {' or '.join(trouble.alerts)} is what tells it.\n{note}"


def _report(numbers: Numbers) -> None:
    if "step" not in numbers:
        _say("  the training is starting")
        return
    steps, seconds = numbers.get("step_duration_seconds_count", 0.0), numbers.get("step_duration_seconds_sum", 0.0)
    pace = f"{1000 * seconds / steps:6.1f} ms a step" if steps else ""
    loss, norm = numbers.get("loss", 0.0), numbers.get("grad_norm", 0.0)
    _say(f"  step {numbers['step']:6.0f}   loss {loss:6.3f}   grad_norm {norm:6.3f}   {pace}")


def _summarise(numbers: Numbers, seconds: float) -> None:
    if "loss" not in numbers:
        _say(f"\n  It ended after {seconds:.0f} s, before the first step.")
        return
    _say(
        f"\n  {numbers.get('steps_total', 0):.0f} steps and {numbers.get('tokens_total', 0):,.0f} tokens in {seconds:.0f} s;"
        f" last loss {numbers['loss']:.3f};"
        f" {numbers.get('client_pushes_total', 0):.0f} pushes, {numbers.get('client_dropped_total', 0):.0f} values dropped,"
        f" {numbers.get('client_overhead_seconds_total', 0):.2f} s of CPU for sending them."
    )


def _scrape(address: str) -> Numbers:
    """The demo's own series, by name without prefix; those with more labels than run and rank are left out."""
    page = _get(address, "/metrics?collect[]=training") or ""
    found = (_LINE.fullmatch(line) for line in page.splitlines())
    return {match[1]: float(match[3]) for match in found if match and match[2] == 'rank="0",run="demo"'}


def _reach(config: Config) -> dict[str, str]:
    """How the training finds the daemon that was started here, and no other; whatever else leads a client is off."""
    endpoint = next(iter(config.push.endpoint), f"ipc://{push_path((), os.environ, os.getuid())}")
    elsewhere = ("RUN_ID", "RUN_NAME", "TAGS", "DISABLED")
    off = {f"TRACKSIDE_{name}": "" for name in elsewhere} | dict.fromkeys(("RANK", "WORLD_SIZE"), "")
    return {**off, "TRACKSIDE_FLUSH_TIMEOUT": "2", "TRACKSIDE_ENDPOINT": endpoint}


def _get(address: str, path: str, token: str = "") -> str | None:
    asked = urllib.request.Request(
        f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with _direct.open(asked, timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
