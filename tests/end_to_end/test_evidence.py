"""Real trainings fail, and their alerts carry evidence of the cause."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

from processes import Daemon, clean_environ, command, eventually, require, run

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
require("torch")

RANK = """
import os, sys, time, trackside, torch, torch.distributed as dist

place = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=place, world_size=2)
run = trackside.init("pair")
ones = torch.ones(4)

def sit_beside_the_others():
    time.sleep(600)  # here it sits

for step in range(100_000):
    if step == 60 and place == 1:
        sit_beside_the_others()
    dist.all_reduce(ones)
    run.push(step=step, loss=1.0)
    time.sleep(0.02)
"""
SITS = next(number for number, line in enumerate(RANK.splitlines(), 1) if "here it sits" in line)

ALONE = """
import time, trackside
for step in range(100_000):
    trackside.push(step=step, loss=0.5)
    time.sleep(0.05)
    if step == 20:
        print("trains", flush=True)
"""


def alerts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the alerts of this name in the history."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == name]


def with_evidence(daemon: Daemon, name: str, part: str) -> dict[str, Any]:
    """Return the alert of a name, once it has a part of its evidence."""
    (found,) = eventually(lambda: [one for one in alerts(daemon, name) if part in one["evidence"]])
    return found


def shown(daemon: Daemon, *arguments: str) -> str:
    """Return the output of `trackside alerts` on a terminal of 80 columns."""
    asked = command("alerts", *arguments, f"--storage.path={daemon.history}")
    environ = clean_environ({"COLUMNS": "80"})
    return run(asked, env=environ, check=True).stdout


def test_a_nan_has_the_samples_before_it_and_is_shown_within_80_columns(daemon: Daemon) -> None:
    with trackside.init("diverges", endpoint=daemon.endpoint) as run:
        for step in range(30):
            run.push(step=step, loss=2.5 + step % 3 / 10, grad_norm=1.5)
        run.push(step=30, loss=float("nan"), grad_norm=7.5)
        found = with_evidence(daemon, "NonFinite", "samples")
        evidence = found["evidence"]
        assert (evidence["samples"]["key"], evidence["samples"]["rank"]) == ("loss", 0)
        points = evidence["samples"]["points"]
        assert [step for step, _, _ in points] == list(range(11, 31))
        assert points[-1][2] == "nan"
        assert (evidence["ranks"]["0"]["grad_norm"], evidence["ranks"]["0"]["step"]) == (7.5, 30)
        assert evidence["ranks"]["0"]["state"] == "running"
        text = shown(daemon, "show", "nonfinite", "--run=diverges")
    assert max(map(len, text.splitlines())) <= 80
    assert re.match(r"alert +NonFinite  critical  firing\n", text)
    assert re.search(r"^  [▁-█]{19}!  2\.5 to 2\.7$", text, re.MULTILINE)
    assert text.endswith("docs/alerts.md#nonfinite\n")
    assert re.search(rf"^ *{found['id']}  NonFinite", shown(daemon), re.MULTILINE)
    assert json.loads(shown(daemon, "show", str(found["id"]), "--json"))["evidence"] == evidence


def test_a_stall_names_the_line_of_the_rank_that_is_not_in_the_collective(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    script = tmp_path / "pair.py"
    script.write_text(RANK, encoding="utf-8")
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STALL_AFTER": "2"})
    for rank in range(2):
        about = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        start_training(daemon, str(script), str(tmp_path / "meeting"), TRACKSIDE_RUN_ID="pair-1", **about)
    found = with_evidence(daemon, "TrainingStalled", "stacks")
    stacks = {one["rank"]: one["threads"] for one in found["evidence"]["stacks"]}
    assert stacks[1][0]["name"] == "MainThread"
    assert stacks[1][0]["frames"][-1] == f"{script}:{SITS} sit_beside_the_others"
    assert any("all_reduce" in frame for frame in stacks[0][0]["frames"])
    assert not [one["name"] for threads in stacks.values() for one in threads if one["name"].startswith("trackside")]
    assert {rank: known["step"] for rank, known in found["evidence"]["ranks"].items()} == {"0": 59, "1": 59}
    daemon.stop()
    text = shown(daemon, "show", "TrainingStalled")
    assert "rank 1, MainThread, innermost call last:" in text
    assert f"pair.py:{SITS} sit_beside_the_others" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_rank_that_does_not_answer_is_named(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STALL_AFTER": "2"})
    training = start_training(daemon, "-c", ALONE, TRACKSIDE_RUN_NAME="net")
    assert training.stdout is not None
    assert training.stdout.readline() == "trains\n"
    training.send_signal(signal.SIGSTOP)
    found = with_evidence(daemon, "TrainingStalled", "missing")
    assert [line for line in found["evidence"]["missing"] if re.match("stacks: rank 0 ", line)]
    assert "stacks" not in found["evidence"]


def test_a_killed_process_has_its_cause_and_what_lives_on(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    ranks = []
    for rank in range(2):
        about = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "TRACKSIDE_RUN_ID": "net-1"}
        ranks.append(start_training(daemon, "-c", ALONE, TRACKSIDE_RUN_NAME="net", **about))
    for training in ranks:
        assert training.stdout is not None
        assert training.stdout.readline() == "trains\n"
    eventually(lambda: len(daemon.api("processes").json()["processes"]) == 2)
    ranks[1].kill()
    found = with_evidence(daemon, "TrainingProcessDied", "events")
    evidence = found["evidence"]
    assert evidence["cause"] == "SIGKILL"
    (end,) = [one for one in evidence["events"] if one["kind"] == "rank_ended"]
    assert (end["rank"], end["fields"]["cause"]) == (1, "SIGKILL")
    assert evidence["ranks"]["1"]["loss"] == 0.5
    assert ranks[0].pid in [one["pid"] for one in evidence["processes"]]
    assert evidence["host"]["memory_bytes"] > 0
    text = shown(daemon, "show", "TrainingProcessDied")
    assert "events before:" in text
    assert max(map(len, text.splitlines())) <= 80
