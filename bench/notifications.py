"""Measure how soon a notification arrives: from the event in a training to the message at a webhook, on each path."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from end_to_end.alert_chain import Road
from end_to_end.inbox import Inbox
from processes import Daemon, clean_environ, eventually

import trackside
from bench.table import head, machine, row

PUSHES = """
import sys, time, trackside
trackside.push(step=1, loss=0.5)
print("trains", flush=True)
time.sleep(600)
"""

NAN, KILLED = "NonFinite", "TrainingProcessDied"
EVENTS = {NAN: "a loss is NaN", KILLED: "a process is killed"}
ROUTED, DIRECT = "Prometheus and Alertmanager", "the webhook of the daemon"
LIMITS = {(NAN, ROUTED): 5.0, (NAN, DIRECT): 2.0, (KILLED, ROUTED): 3.0, (KILLED, DIRECT): 3.0}
"""Targets in seconds, for the slowest round."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    machine()
    head(f"{rounds} rounds", "median", "max", "target", "")
    with closing(Inbox()) as inbox:
        nan = measured(inbox, NAN, rounds)
        # Each with a daemon of its own: of runs that die one after the other, one message tells.
        killed = [measured(inbox, KILLED, 1)[0] for _ in range(rounds)]
    for alert, both in ((NAN, nan), (KILLED, killed)):
        show(alert, ROUTED, [routed for routed, _ in both])
        show(alert, DIRECT, [direct for _, direct in both])


def measured(inbox: Inbox, alert: str, rounds: int) -> list[tuple[float, float]]:
    """Return what `one` returns in each round, with a daemon, a Prometheus and an Alertmanager for all of them."""
    sink = {"TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL": f"{inbox.url}/direct"}
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), environ=sink, fresh=True)
        try:
            with Road(Path(directory), daemon.url) as road:
                eventually(lambda: road.value("up") == 1)
                return [
                    one(daemon, road.inbox, inbox, alert, f"{alert.lower()}-{time.time_ns()}") for _ in range(rounds)
                ]
        finally:
            daemon.stop()


def one(daemon: Daemon, alertmanager: Inbox, webhook: Inbox, alert: str, run: str) -> tuple[float, float]:
    """Cause the event once in a new run; return the seconds until Alertmanager notifies, and until the daemon itself does."""
    time.sleep(random.random())  # scrapes come each second: it happens at any time between two
    begun = _nan(daemon, run) if alert == NAN else _killed(daemon, run)

    def arrived(inbox: Inbox, receiver: str) -> list[float]:
        letters = (letter for letter in inbox.of(receiver) if letter.fires(f"Trackside{alert}"))
        return [one.at for one in letters if any(each["labels"].get("run") == run for each in one.body["alerts"])]

    routed = eventually(lambda: arrived(alertmanager, "training-page"))[0]
    return routed - begun, eventually(lambda: arrived(webhook, "direct"))[0] - begun


def show(alert: str, road: str, seconds: list[float]) -> None:
    """Print a table row."""
    limit, slowest = LIMITS[alert, road], max(seconds)
    verdict = "met" if slowest <= limit else "**MISSED**"
    figures = (f"{statistics.median(seconds):.2f} s", f"{slowest:.2f} s", f"<= {limit:g} s")
    row(f"{EVENTS[alert]}: {road}", *figures, verdict)


def _nan(daemon: Daemon, run: str) -> float:
    """Push NaN, and return when."""
    with trackside.init(run, endpoint=daemon.endpoint) as training:
        training.push(step=1, loss=2.5)
        eventually(lambda: f'trackside_training_step{{rank="0",run="{run}"}}' in daemon.series())
        begun = time.monotonic()
        training.push(step=2, loss=float("nan"))
    return begun


def _killed(daemon: Daemon, run: str) -> float:
    """Kill the only process of a run, and return when."""
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_NAME": run})
    with subprocess.Popen([sys.executable, "-c", PUSHES], env=environ, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        training.stdout.readline()
        eventually(lambda: f'trackside_training_step{{rank="0",run="{run}"}}' in daemon.series())
        begun = time.monotonic()
        training.kill()
    return begun


if __name__ == "__main__":
    main()
