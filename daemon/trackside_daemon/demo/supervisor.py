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
from typing import TYPE_CHECKING
from urllib.error import URLError

from trackside_daemon.beside import Child, stop_all
from trackside_daemon.ingest.endpoint import push_path, token_path
from trackside_daemon.web.address import AddressError, listen

if TYPE_CHECKING:
    from trackside_daemon.config import Config

READY_SECONDS = 30.0
REPORT_SECONDS = 2.0
DRIVER = Path("/proc/driver/nvidia/version")
_LINE = re.compile(r"trackside_training_(\w+)\{(.*)\} (\S+)")

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever $http_proxy says

Numbers = dict[str, float]


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


def run(config: Config, steps: int | None) -> int:
    """Run until the training ends or Ctrl-C.

    Args:
        config: Only where the daemon will listen is read here.
        steps: Of the training; None for no end.

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
    children: list[Child] = []
    with TemporaryDirectory(prefix="trackside-demo-") as history:  # apart from that of real runs
        os.environ["TRACKSIDE_SPOOL"] = history  # nor is anything of a demo that was killed a later daemon's to take
        flags = [f"--web.listen-address={listens}", "--log.level=warning", f"--storage.path={history}", *simulated]
        children.append(Child("trackside_daemon", "daemon", *flags))
        try:
            status = _run(config, address, steps, children, stopped)
        finally:
            stop_all(children)
    if stopped.is_set():
        return 0
    return 1 if status < 0 else status  # a signal that nobody here sent


def _run(config: Config, address: str, steps: int | None, children: list[Child], stopped: _Stop) -> int:
    """Train and report until the training ends; whoever ends first, the last word is a summary."""
    daemon = children[0]
    if not _is_ready(address, daemon, stopped):
        if daemon.status is None and not stopped.is_set():
            _say(f"trackside: the daemon did not answer at http://{address}/-/ready within {READY_SECONDS:g} s")
            daemon.stop()
            return 1
        return daemon.stop()
    _introduce(config, address)
    begun = time.monotonic()
    training = Child("trackside_daemon.demo.train", *(["--steps", str(steps)] if steps else []), environ=_reach(config))
    children.append(training)
    while training.status is None and daemon.status is None and not stopped.wait(REPORT_SECONDS):
        _report(_scrape(address))
    if daemon.status is not None and not stopped.is_set():
        _say(f"\n  The daemon ended by itself, with status {daemon.status}.")
    status = training.stop()
    _summarise(_scrape(address), time.monotonic() - begun)
    return daemon.stop() or status


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


def _introduce(config: Config, address: str) -> None:
    token = token_path(config.push.endpoint, os.environ, os.getuid()).read_text().strip()
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
        + "\n  Ctrl-C ends it. What /metrics says now and then:\n"
    )


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


def _get(address: str, path: str) -> str | None:
    try:
        with _direct.open(f"http://{address}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
