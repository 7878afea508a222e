"""`trackside demo`: the daemon and the training beside it, and what `/metrics` says of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

from trackside_daemon.beside import Child, stop_all
from trackside_daemon.ingest.endpoint import push_directory

if TYPE_CHECKING:
    from trackside_daemon.config import Config

READY_SECONDS = 30.0
REPORT_SECONDS = 2.0
_LINE = re.compile(r"trackside_training_(\w+)\{(.*)\} (\S+)")

Numbers = dict[str, float]


def run(config: Config, steps: int | None) -> int:
    """Run until the training ends or Ctrl-C.

    Args:
        config: Only where the daemon will listen is read here.
        steps: Of the training; None for no end.

    Returns:
        The exit status: the daemon's when it cannot start, else the training's.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    simulated = [] if Path("/proc/driver/nvidia/version").exists() else ["--collector.gpu.simulate=2"]
    children = [Child("trackside_daemon", "daemon", "--log.level=warning", *simulated)]
    try:
        if not _is_ready(config, children[0], stopped):
            return children[0].stop()
        _introduce(config, simulated=bool(simulated))
        children.append(
            Child("trackside_daemon.demo.train", *(["--steps", str(steps)] if steps else []), environ=_reach(config))
        )
        return _watch(config, children, stopped)
    finally:
        stop_all(children)


def _watch(config: Config, children: list[Child], stopped: threading.Event) -> int:
    """Report until the training ends; whoever ends first, the last word is a summary."""
    begun = time.monotonic()
    daemon, training = children
    while training.status is None and daemon.status is None and not stopped.wait(REPORT_SECONDS):
        _report(_scrape(config))
    status = training.stop()
    _summarise(_scrape(config), time.monotonic() - begun)
    return daemon.stop() or status


def _is_ready(config: Config, daemon: Child, stopped: threading.Event) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while daemon.status is None and time.monotonic() < deadline:
        if _get(config, "/-/ready") is not None:
            return True
        if stopped.wait(0.1):
            return False
    return False


def _introduce(config: Config, *, simulated: bool) -> None:
    address = config.web.listen_address
    token = (push_directory(config.push.endpoint, os.environ, os.getuid()) / "token").read_text().strip()
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
            if simulated
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
    _say(
        f"\n  {numbers.get('steps_total', 0):.0f} steps and {numbers.get('tokens_total', 0):,.0f} tokens in {seconds:.0f} s;"
        f" last loss {numbers.get('loss', float('nan')):.3f};"
        f" {numbers.get('client_pushes_total', 0):.0f} pushes, {numbers.get('client_dropped_total', 0):.0f} values dropped,"
        f" {numbers.get('client_overhead_seconds_total', 0):.2f} s of CPU for sending them."
    )


def _scrape(config: Config) -> Numbers:
    """The demo's own series, by name without prefix; those with more labels than run and rank are left out."""
    page = _get(config, "/metrics?collect[]=training") or ""
    found = (_LINE.fullmatch(line) for line in page.splitlines())
    return {match[1]: float(match[3]) for match in found if match and match[2] == 'rank="0",run="demo"'}


def _reach(config: Config) -> dict[str, str]:
    """How the training finds the daemon that was started here, and no other."""
    endpoint = next(iter(config.push.endpoint), None)
    return {"TRACKSIDE_ENDPOINT": endpoint} if endpoint else {}


def _get(config: Config, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{config.web.listen_address}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
