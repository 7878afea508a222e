"""`trackside alerts` of a history that no daemon writes."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, history, opened
from processes import run_here

from trackside_daemon.documents import text
from trackside_daemon.documents.alert import document
from trackside_daemon.model.records import Alert, AlertNote, Notified

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

MAIN = {"name": "Main\x1bThread", "frames": ["/a/very" * 30 + "/train.py:3 main"]}
LIBRARY = {"name": "feeder", "frames": ["/usr/lib/python3.11/threading.py:3 wait"]}
EVIDENCE = {
    "occurrences": [
        {"number": 1, "time": BEGIN - 60, "summary": "NaN at step 7"},
        {"number": 2, "time": BEGIN, "summary": "NaN at step 9"},
    ],
    "value": 97.0,
    "ranks": {
        "0": {"step": 31219, "phase": "train"},
        "10": {"step": 5},
        "2": {"phase_seconds": {"data": 3700.0}},
        **{str(rank): {"state": "running", "last_push": BEGIN, "loss": 1234.5678} for rank in range(3, 8)},
    },
    "samples": {"key": "loss", "rank": 0, "points": [[1, BEGIN, 1.0], [2, BEGIN, "inf"], [3, BEGIN, 3.0]]},
    "stacks": [
        {"rank": 0, "threads": [LIBRARY, MAIN]},
        {"rank": 1, "threads": [MAIN]},
    ],
    "hang": {"kind": "outside", "places": {"0": "train.py:3 in main"}},
    "processes": [{"pid": 7, "role": "rank", "resident_bytes": 3 * 2**30}],
    "gpus": {"3": {"readings": {"clock_hertz sm": 1.98e9}, "ranks": ["rank 3 of net"], "processes": [{"pid": 7}]}},
    "cgroups": {"/a" * 60: {"memory_limit_bytes": 5 * 2**30}},
    "host": {"memory_available_bytes": 1024},
    "events": [{"time": BEGIN - 5, "rank": 1, "step": None, "kind": "rank_ended", "fields": {"cause": "SIGBUS"}}],
    "xids": [{"gpu": "3", "xid": "79", "time": BEGIN - 2}],
    "console": ["Traceback (most recent call last):", "RuntimeError: CUDA error"],
    "missing": ["stacks: rank 1 did not answer within 3 s"],
}


PLAIN: dict[str, Any] = {
    "id": 1,
    "alert": "A",
    "severity": "info",
    "started": BEGIN,
    "ended": None,
    "run": "",
    "name": "",
    "labels": {},
    "summary": "s",
    "description": "",
    "notified": [],
    "evidence": {},
}
"""An alert of the machine that fires, and of which nothing more is known."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A history with three alerts."""
    first = Alert("TrainingStalled", "warning", BEGIN, "net-1", {"run": "net"}, "it stands", "Look.", BEGIN + 60)
    second = Alert("TrainingStalled", "critical", BEGIN + 100, "net-1", {"run": "net"}, "it stands again", "Look.")
    hot = Alert("GpuHot", "warning", BEGIN, labels={"gpu": "3"}, summary="GPU 3 is hot")
    note = AlertNote(
        "TrainingStalled",
        BEGIN + 100,
        "net-1",
        {"run": "net"},
        EVIDENCE,
        {"webhook": Notified("critical", "it stands again")},
    )
    with history(tmp_path / "history") as kept:
        kept.put([opened("net-1", name="net"), first, second, hot, note])
    return tmp_path / "history"


def ask(place: Path, *arguments: str, after: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `trackside alerts` on a terminal of 80 columns."""
    where = [f"--storage.path={place}"]
    asked = ("alerts", *([] if after else where), *arguments, *(where if after else []))
    return run_here(*asked, environ={"COLUMNS": "80"})


def test_the_list_has_ids_by_which_each_is_shown(place: Path) -> None:
    printed = ask(place).stdout
    listed = dict(re.findall(r"^ *(\d+)  (\w+) .* resolved$", printed, re.MULTILINE))
    ((number, name),) = listed.items()
    assert name == "TrainingStalled"
    assert "it stands\n" in ask(place, "show", number).stdout


def test_a_name_means_the_newest_and_all_of_it_fits_80_columns(place: Path) -> None:
    done = ask(place, "show", "trainingstalled", "--run=net")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, "alert     TrainingStalled  critical  firing")
    assert max(map(len, lines)) <= 80
    assert "notified  webhook" in lines
    assert "  value  97" in lines
    assert re.search(r"rank 0 +rank 2 +rank 3 +rank 4", done.stdout, re.MULTILINE)
    assert "  ▁!█  1 to 3" in lines
    own, library = (
        lines.index(f"{name}, innermost call last:") for name in ("ranks 0 and 1, Main\\x1bThread", "rank 0, feeder")
    )
    assert own < library, "equal ones together, and the user's code first"
    assert re.search(r"^  clock_hertz sm +1.98 GHz$", done.stdout, re.MULTILINE)
    assert "  1 min 45 s before     1  rank_ended  cause=SIGBUS" in lines
    assert "  1 min 42 s before  3    79" in lines
    assert "  RuntimeError: CUDA error" in lines
    assert re.search(r"^ +2  2023-11-14 22:13:20  NaN at step 9$", done.stdout, re.MULTILINE)
    assert "  stacks: rank 1 did not answer within 3 s" in lines
    assert lines[-2:] == ["next      trackside show net-1", "read      docs/alerts.md#trainingstalled"]


def test_as_json_it_is_as_it_was_stored(place: Path) -> None:
    kept = json.loads(ask(place, "show", "TrainingStalled", "--json").stdout)
    assert kept["evidence"]["console"] == EVIDENCE["console"]
    assert kept["notified"] == ["webhook"]


def test_a_false_alarm_is_dismissed_without_a_daemon_and_shown_as_that(place: Path) -> None:
    number = str(json.loads(ask(place, "show", "GpuHot", "--json").stdout)["id"])
    done = ask(place, "dismiss", number, "--comment", "fans")
    assert (done.returncode, done.stdout) == (0, f"alert {number}, GpuHot: marked as a false alarm\n")
    shown = ask(place, "show", number).stdout
    assert re.search(r"^dismissed  as a false alarm .*: fans$", shown, re.MULTILINE)
    assert re.search(r"^ *\d+  GpuHot .* dismissed$", ask(place).stdout, re.MULTILINE)
    assert ask(place, "dismiss", number, "--undo").stdout.endswith("no longer marked as a false alarm\n")
    assert "dismissed" not in ask(place, "show", number).stdout
    done = ask(place, "dismiss", "99")
    assert (done.returncode, done.stderr) == (
        2,
        "trackside: alert 99: no such alert; `trackside alerts` and /api/v1/alerts list them with their ids\n",
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("99", "trackside: alert 99: no such alert; `trackside alerts` and /api/v1/alerts list them with their ids\n"),
        ("GpuCold", "trackside: no alert 'GpuCold'; the alerts are TrainingStalled, GpuHot\n"),
    ],
)
def test_an_unknown_alert_is_reported_in_a_line(place: Path, asked: str, message: str) -> None:
    done = ask(place, "show", asked)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_options_before_the_command_are_not_lost_in_silence(place: Path) -> None:
    done = ask(place, "show", "GpuHot", after=False)
    assert (done.returncode, done.stderr) == (
        2,
        "trackside: put options after the command: trackside alerts show … --run=RUN\n",
    )


@pytest.mark.parametrize("name", sorted(EVIDENCE))
@pytest.mark.parametrize("strange", ["text", 7, [None], {"a": [{"b": None}]}, [[]], [{"rank": 1}]])
def test_evidence_of_another_shape_is_shown_all_the_same(name: str, strange: Any) -> None:
    alert = {**PLAIN, "evidence": {name: strange}}
    assert len(list(text.write(document(alert, time.time())))) > 4


def test_the_end_of_its_silence_is_shown() -> None:
    alert = {**PLAIN, "silenced_until": BEGIN}
    assert [line[:15] for line in text.write(document(alert, BEGIN)) if line.startswith("silenced")] == [
        "silenced  until"
    ]


def test_the_samples_of_a_batch_are_not_cut_but_counted() -> None:
    names = {str(sample): f"img/{sample:05}.png" for sample in range(32)}
    bad = {"step": 9, "rank": 0, "samples": [*range(40)], "names": names, "count": 40}
    evidence = {
        "step": 9,
        "batches": [bad, {"step": 8, "rank": 0, "before": True, "number": 9, "iteration": 2, "worker": 1}],
    }
    shown = " ".join(" ".join(text.write(document(PLAIN | {"run": "net-1", "evidence": evidence}, BEGIN))).split())
    assert all(f"{sample} {name}," in shown for sample, name in names.items())
    assert "img/00031.png, and 8 more 8, before 0 - batch 9 of iteration 2, from worker 1" in shown
    assert "trackside batch net-1 --step 9" in shown
