"""Decisions of `trackside run --restart` on ends of its command."""

from __future__ import annotations

import os
import time
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from trackside_daemon.cli.run import trouble_watch
from trackside_daemon.cli.run.command_daemon import CommandDaemon
from trackside_daemon.cli.run.restarts import CommandEnd, CommandStart, Restarts, StopOn, restarts, stop_alerts
from trackside_daemon.cli.run.session import RunOptions, _Session
from trackside_daemon.cli.run.summary import CommandSummary, RunFacts
from trackside_daemon.cli.run.trouble_watch import TroubleWatch
from trackside_daemon.cli.sources.source import SourceError
from trackside_daemon.linux.job_processes import Activity, JobProcesses, activity, busy
from trackside_daemon.questions import table as questions

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.cli.run.signal_forwarding import Signals
    from trackside_daemon.cli.run.trouble_watch import CommandTrouble
    from trackside_daemon.cli.sources.api_source import ApiSource
    from trackside_daemon.cli.sources.source import Source

ALL = frozenset({"crash", "hang", "nan"})


def crash(step: int | None, cause: str = "KeyError: 'x'", status: int = 1) -> CommandEnd:
    return CommandEnd("crash", status, cause, step)


def test_pauses_grow_only_without_progress() -> None:
    decisions = Restarts(9, ALL)
    causes = iter("abcdefgh")
    pauses = [decisions.after(crash(step, next(causes))).pause for step in (10, 20, 20, 15, 30)]
    assert pauses == [5.0, 5.0, 20.0, 80.0, 5.0]


def test_a_restart_without_progress_counts_twice() -> None:
    decisions = Restarts(4, ALL)
    assert [decisions.after(crash(10, cause)).pause is None for cause in "abc"] == [False, False, True]
    assert "all 4 restarts are used up" in decisions.after(crash(10, "d")).reason


@pytest.mark.parametrize(
    ("causes", "restarted"),
    [
        (["KeyError: 'x'"] * 3, [True, True, False]),
        ([f"closed by peer [127.0.0.1]:{port}" for port in (1, 22, 333)], [True, True, False]),
        (["KeyError: 'x'", "KeyError: 'y'", "KeyError: 'z'"], [True, True, True]),
    ],
)
def test_the_third_end_by_the_same_cause_at_the_same_step_is_the_last(causes: list[str], restarted: list[bool]) -> None:
    decisions = Restarts(20, ALL)
    found = [decisions.after(crash(1200, cause)) for cause in causes]
    assert [one.pause is not None for one in found] == restarted
    if not all(restarted):
        assert found[-1].reason == f"not restarted: it has ended 3 times in the same way: {causes[-1]}, at step 1,200"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (crash(1, status=0), ""),
        (crash(1, status=2), "exit status 2"),
        (crash(1, status=78), "exit status 78"),
        (crash(1, status=130), "SIGINT"),
        (crash(1, status=143), "SIGTERM"),
        (CommandEnd("nan", 1, "", 3), ""),
    ],
)
def test_these_ends_are_final(end: CommandEnd, reason: str) -> None:
    decision = Restarts(5, frozenset({"crash", "hang"})).after(end)
    assert decision.pause is None
    assert reason in decision.reason


def test_a_killed_command_is_restarted() -> None:
    assert Restarts(1, ALL).after(crash(1, "SIGKILL", 137)).pause == 5.0


@pytest.mark.parametrize(("failed", "end"), [(False, ""), (True, "it did not finish, and ")])
def test_the_line_has_what_a_night_without_restarts_costs(failed: bool, end: str) -> None:
    decisions = Restarts(5, ALL)
    assert decisions.line(0.0, failed=failed) == ""
    decisions.ends += [CommandEnd("hang", 143, "rank 1 is at train.py:3", 1200, at=100.0), crash(1300)]
    expected = "restarted 2 times: hang at step 1,200, crash at step 1,300; "
    assert decisions.line(7300.0, failed=failed) == (
        f"{expected}{end}without --restart it would have stood still for 2 h"
    )


def test_arguments_for_restarts_get_the_checkpoint() -> None:
    first = CommandStart(["python", "train.py"], {"A": "1"})
    again = first.again(["--resume", "{checkpoint}/model"], "/data/step 5")
    assert again.command == ["python", "train.py", "--resume", "/data/step 5/model"]
    assert again.environ == {"A": "1", "TRACKSIDE_RESUME": "/data/step 5"}
    assert first.again(["--resume", "{checkpoint}"], "") == CommandStart(["python", "train.py"], {"A": "1"})
    assert first.again(["--resume", "auto"], "").command == ["python", "train.py", "--resume", "auto"]


class TwoRuns:
    """The answers of a daemon on a command of two runs, of which the first has a NaN."""

    def __init__(self, ended: float | None, evidence: dict[str, Any]) -> None:
        self.evidence = evidence
        self.runs = [{"id": "a", "ended": None}, {"id": "b", "ended": ended}]

    def ask(self, question: Any) -> dict[str, Any]:
        if isinstance(question, questions.Runs):
            return {"runs": self.runs}
        nan = {
            "alert": "NonFinite",
            "severity": "critical",
            "started": time.time() + 1,
            "summary": "NaN",
            "evidence": self.evidence,
        }
        return {"alerts": [nan] if question.run == "a" else []}


@pytest.mark.parametrize(
    ("ended", "evidence", "found"),
    [
        (None, {}, False),
        (1.0, {"doubtful_from_step": 41}, True),
        (1.0, {"recovered": 2.0}, False),
        (1.0, {"occurrences": [{"time": 0.0}, {"time": 4e9}]}, False),
    ],
)
def test_a_run_is_ended_for_a_trouble_that_lasts_and_for_no_other_run(
    ended: float | None, evidence: dict[str, Any], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble_watch, "NAN_SECONDS", -10.0)
    processes = JobProcesses(os.getpid(), "none")
    source = cast("Source", TwoRuns(ended, evidence))
    watch = TroubleWatch(source, "none", processes, lambda _: None, kinds={"nan"}, stop_on=())
    watch.stop()
    trouble = watch._poll()
    assert (trouble is not None) is found
    assert trouble is None or trouble.step == 41


class KnownRun:
    """A summary of a command with one run, in place of `CommandSummary`."""

    checkpoints: tuple[dict[str, Any], ...] = ()

    def __init__(self, *_: Any) -> None:
        pass

    def facts(self, *_: Any) -> RunFacts:
        return RunFacts("run", "name", 1, "", 650, self.checkpoints)


def saved(path: Path, step: int, at: float) -> dict[str, Any]:
    """Return an intact checkpoint that is on disk."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", path.name)
    return {"path": str(path), "step": step, "time": at, "state": "unread"}


@pytest.mark.parametrize("evidence", [{"doubtful_from_step": 450}, {}])
def test_no_start_goes_on_from_what_was_saved_after_a_nan_also_not_after_another_crash(
    evidence: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be named by its epoch, and a NaN may have no step of the training."""
    monkeypatch.setattr(trouble_watch, "NAN_SECONDS", -10.0)
    monkeypatch.setattr("trackside_daemon.cli.run.restarts.PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr("trackside_daemon.cli.run.session.CommandSummary", KnownRun)
    source = cast("Source", TwoRuns(1.0, evidence))
    watch = TroubleWatch(source, "none", JobProcesses(os.getpid(), "none"), lambda _: None, kinds={"nan"}, stop_on=())
    watch.stop()
    now = time.time()
    good, spoilt = saved(tmp_path / "step-400.pt", 400, now - 60), saved(tmp_path / "step-600.pt", 600, now + 90)
    older = saved(tmp_path / "epoch-7.pt", 7, now + 60), good
    monkeypatch.setattr(KnownRun, "checkpoints", (spoilt, *older))
    signals, options = SimpleNamespace(ending=0), RunOptions(restarts=Restarts(9, ALL))
    session = _Session(["train"], cast("Signals", signals), cast("Any", None), options)

    def resumed(trouble: CommandTrouble | None) -> str:
        session._trouble = trouble
        start = session._next(CommandStart(["train"], {}), 1, CommandDaemon("ipc:///none", None, ""))
        assert start is not None
        return start.environ["TRACKSIDE_RESUME"]

    assert resumed(watch._poll()) == good["path"]
    assert resumed(None) == good["path"]
    monkeypatch.setattr(KnownRun, "checkpoints", (saved(tmp_path / "step-600.pt", 600, now + 120), *older))
    assert resumed(None) == spoilt["path"], "saved anew, by the start after the NaN"


@pytest.mark.parametrize("seconds", [5.0, 80.0])
def test_a_process_that_computes_reads_or_waits_for_a_cpu_is_no_hang(seconds: float) -> None:
    """Other processes than these, such as those of wandb, and the client's threads use less beside a hang."""
    before = activity(psutil.Process())
    assert before is not None
    assert min(before) > 0
    cpu, io, wakes, starved = before
    idle = Activity(
        cpu + 0.02 * seconds, io + round(8_000 * seconds), wakes + round(0.2 * seconds), starved + 0.03 * seconds
    )
    assert not busy(before, idle, seconds)
    for name, used in (("cpu", 0.06), ("io", 20_000), ("wakes", 4), ("starved", 0.12)):
        assert busy(before, idle._replace(**{name: getattr(before, name) + used * seconds}), seconds)


def test_flags_become_restarts() -> None:
    assert restarts("", "crash") is None
    found = restarts("--", "crash, nan")
    assert found is not None
    assert (found.most, found.kinds) == (5, frozenset({"crash", "nan"}))
    for most, kinds, named in (
        ("0", "crash", "--restart 0"),
        ("x", "crash", "--restart x"),
        ("3", "oom", "--restart.on oom"),
    ):
        with pytest.raises(ValueError, match=named):
            restarts(most, kinds)


def test_alerts_that_end_a_command() -> None:
    assert stop_alerts("NonFinite, LossDiverging:10m") == [StopOn("NonFinite", 0.0), StopOn("LossDiverging", 600.0)]
    for text, named in (("NonFinit", "there is no alert NonFinit"), ("NonFinite:soon", "'soon' is not a duration")):
        with pytest.raises(ValueError, match=named):
            stop_alerts(text)


class FullDisk:
    """The answers of a daemon that cannot write its history."""

    live = False

    def ask(self, _: Any) -> dict[str, Any]:
        return {"runs": []}

    def status(self) -> dict[str, str]:
        return {"storage_problem": "database or disk is full"}


class NoHistory(FullDisk):
    """The answers of a daemon whose history could not be made."""

    live = True

    def ask(self, _: Any) -> dict[str, Any]:
        raise SourceError("there is no history at the moment: /data/history.db: database or disk is full")


@pytest.mark.parametrize("known", [True, False])
def test_a_history_that_could_not_be_made_is_one_line(known: bool) -> None:
    printed: list[str] = []
    summary = CommandSummary("none", CommandDaemon("ipc:///none", cast("ApiSource", NoHistory()), ""), None, "")
    ask = summary.facts if known else summary.report
    ask(cast("Signals", SimpleNamespace(ending=0)), printed.append)
    begin = "nothing is known of the command's runs" if known else "no summary"
    assert printed == [f"{begin}: there is no history at the moment: /data/history.db: database or disk is full"]


def test_a_history_that_cannot_be_written_is_no_command_without_runs() -> None:
    printed: list[str] = []
    daemon = CommandDaemon("ipc:///none", cast("ApiSource", FullDisk()), "")
    CommandSummary("none", daemon, None, "nothing was pushed").report(cast("Signals", None), printed.append)
    assert printed == [
        "the history has nothing of the command yet: database or disk is full; what it pushed waits on disk for the next daemon"
    ]


class Busy:
    """The answers of a daemon that has received what a training reports, and has not listed its files yet."""

    live = False

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def ask(self, _: Any) -> dict[str, Any]:
        run = {"id": "run", "name": "gpt", "state": "failed", "cause": "", "started": 0.0, "ended": 1.0, "step": 9}
        saved = {"kind": "checkpoint", "attempt": 0, "time": 1.0, "step": 8, "fields": {"path": "out/step-8.pt"}}
        attempt = {"attempt": 0, "directory": self._directory}
        return {"runs": [run], "run": "run", "checkpoints": [], "events": [saved], "attempt_list": [attempt]}


def test_a_restart_begins_at_a_checkpoint_that_the_daemon_has_not_listed_yet(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    wanted = saved(tmp_path / "out" / "step-8.pt", 8, 1.0)["path"]
    daemon = CommandDaemon("ipc:///none", cast("ApiSource", Busy(tmp_path)), "")
    facts = CommandSummary("none", daemon, None, "").facts(cast("Signals", SimpleNamespace(ending=0)), print)
    assert facts.checkpoint(None, set()) == (wanted, [])
