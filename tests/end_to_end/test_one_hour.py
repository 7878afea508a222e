"""One hour of everything at once: memory, descriptors and threads stay flat, nothing is lost, each notification comes once."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil
from end_to_end.conftest import finish
from end_to_end.inbox import Inbox
from end_to_end.test_history import PATIENT, stored_samples
from processes import Daemon, eventually, http, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process

require("torch")
require("pyarrow")

KEYS = 30
#: Threads that answer at once, each with a connection to the history (its file and its WAL): they stay, once there was need.
READERS = 2
MINUTES = int(os.environ.get("SOAK_MINUTES", "60"))

#: Train a small model at a steady rate until the input ends, and print the number of steps. Rank 0 keeps checkpoints and media.
TRAINING = """
import os, random, sys, threading, time, torch, trackside
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = os.environ["RANK"] == "0"
checkpoints = trackside.Checkpoints(sys.argv[1], keep=3)
step, began = 0, time.monotonic()
with trackside.init("hour", tags=["soak"]) as run:
    while not stop.wait(max(0.0, began + step / 20 - time.monotonic())):
        with run.phase("forward"):
            loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.push({f"key{more}": step + more for more in range(30)}, step=step)
        run.push(step=step, loss=loss)
        if first and step % 600 == 300:
            with run.phase("checkpoint"):
                checkpoints.save({"model": model, "optimizer": optimizer}, step, {"loss": float(loss)})
        if first and step % 400 == 200:
            run.log_image("noise", torch.rand(64, 64), step=step)
            run.log_text("text", f"step {step}", step=step)
        step += 1
print(step, flush=True)
"""

#: A run of some seconds whose loss becomes NaN, which ends at once.
DIVERGING = """
import time, trackside
with trackside.init() as run:
    for step in range(40):
        run.push(step=step, loss=float("nan") if step == 39 else 1 / (step + 1))
        time.sleep(0.02)
"""


class Use(NamedTuple):
    """Resources of a process: MiB, descriptors and threads."""

    memory: float
    descriptors: int
    threads: int


def used(daemon: Daemon) -> dict[str, Use]:
    """Return what the daemon and each of its lasting children use, by the name of its module."""
    found = {}
    process = psutil.Process(daemon.process.pid)
    for one in (process, *process.children()):
        with suppress(psutil.Error):  # it has just ended
            words = one.cmdline()
            name = next((word for word in words if word.startswith("trackside_daemon")), "")
            use = Use(one.memory_info().rss / 2**20, one.num_fds(), one.num_threads())
            found["daemon" if one.pid == process.pid else name.removeprefix("trackside_daemon.")] = use
    return found


def test_one_hour_of_everything(
    only_soak: None,
    start_training: Callable[..., Process],
    place: Path,
    soaked: list[tuple[str, int, float]],
) -> None:
    archive = place / "archive"
    bridges = {"tensorboard": {"directory": str(place / "tensorboard")}, "parquet": {"url": str(archive)}}
    with closing(Inbox()) as inbox, ExitStack() as ends:
        sinks = {"webhook": {"url": f"{inbox.url}/direct"}}
        config = place / "trackside.yml"
        config.write_text(json.dumps({"bridges": bridges, "alerts": {"sinks": sinks}}))
        daemon = Daemon(place, f"--config.file={config}", "--collector.gpu.simulate=8", fresh=True)
        ends.callback(daemon.stop)
        group = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        ranks = [
            start_training(
                daemon,
                *("-c", TRAINING, str(place / "checkpoints")),
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "TRACKSIDE_RUN_ID": "hour", **group, **PATIENT},
            )
            for rank in range(4)
        ]
        eventually(lambda: daemon.api("runs/hour").status_code == 200)
        uses: list[dict[str, Use]] = []
        scrapes: list[float] = []
        diverged: list[str] = []
        for minute in range(MINUTES):
            until = time.monotonic() + 60
            _capture(daemon)
            if minute % 7 == 3:
                diverged.append(f"diverging{minute}")
                finish(start_training(daemon, "-c", DIVERGING, TRACKSIDE_RUN_NAME=diverged[-1], **PATIENT))
            while time.monotonic() < until:
                asked = time.monotonic()
                daemon.get("/metrics").raise_for_status()
                scrapes.append(time.monotonic() - asked)
                time.sleep(2)  # as Prometheus does
            uses.append(used(daemon))
        steps = [int(finish(rank)) for rank in ranks]
        eventually(lambda: daemon.api("runs/hour").json()["state"] == "finished")
        captures = Counter(one["state"] for one in daemon.api("runs/hour/captures").json()["captures"])
        eventually(lambda: [*archive.glob("runs/**/hour*.parquet")])
        eventually(lambda: _lag(daemon) == 0.0)
        letters = [letter.body for letter in inbox.of("direct")]
        assert daemon.stop() == 0

    found = stored_samples(daemon.history, "hour")
    for rank, number in enumerate(steps):
        for key in range(KEYS):
            assert found[0, rank, f"key{key}"] == [(step, float(step + key)) for step in range(number)], (rank, key)
    assert len({json.dumps(letter, sort_keys=True) for letter in letters}) == len(letters), "a message came twice"
    for run in diverged:
        own = [alert for letter in letters for alert in letter["alerts"] if alert["labels"].get("run") == run]
        first = [alert for alert in own if alert["labels"]["alertname"] == "TracksideNonFinite"]
        assert [alert["status"] for alert in first] == ["firing", "resolved"], run
    half = uses[len(uses) // 2 :]
    total = [sum(use.memory for use in minute.values()) for minute in half]
    soaked.extend(_rows(uses, scrapes, (KEYS + 1) * sum(steps), captures, len(letters)))
    middle = statistics.median(total)
    assert max(abs(one - middle) for one in total) <= 0.05 * middle, total
    for what, more in (("descriptors", 2 * READERS), ("threads", READERS)):
        each = [sum(getattr(use, what) for use in minute.values()) for minute in uses]
        assert min(each[-5:]) <= min(each[2:7]) + more, (what, each)
    assert captures["summarised"] >= 0.9 * MINUTES, captures


def _capture(daemon: Daemon) -> None:
    token = (daemon.directory / "push.token").read_text().strip()
    asked = {"kind": "profile", "steps": 5}
    answer = http.post(
        f"{daemon.url}/api/v1/runs/hour/captures", json=asked, headers={"authorization": f"Bearer {token}"}
    )
    answer.raise_for_status()


def _lag(daemon: Daemon) -> float:
    return max(value for name, value in daemon.series().items() if name.startswith("trackside_bridge_lag_seconds"))


def _rows(
    uses: list[dict[str, Use]], scrapes: list[float], values: int, captures: Counter[str], letters: int
) -> Iterator[tuple[str, int, float]]:
    """Yield the rows of the table: what was used at some minutes, and what was done."""
    for minute in sorted({1, len(uses) // 2, len(uses) - 1} & {*range(len(uses))}):
        for name, use in sorted(uses[minute].items()):
            yield (
                f"the same: {name}, {use.descriptors} fds, {use.threads} threads; MiB, minute",
                round(use.memory),
                minute,
            )
    worst, median = max(scrapes), statistics.median(scrapes)
    yield f"the same: scrapes, median {1000 * median:.0f} ms, worst {1000 * worst:.0f} ms", len(scrapes), 0.0
    yield f"the same: values, none lost; captures {dict(captures)}; {letters} messages", values, 60.0 * len(uses)
