"""`trackside replay` as a process: over files, standard input, and runs of the history."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
from bridges.directories import BEGIN as EVENTS_BEGIN
from bridges.directories import events, file_name
from histories import BEGIN, finished, history, ingested, opened
from processes import DEADLINE, ROOT, clean_environ, command, run_here

from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.tensorboard.mirror import encoded_event, encoded_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processes import Daemon

DATA = Path(os.environ.get("TRACKSIDE_SHARED_DATA") or ROOT.parent / "shared" / "data")


def replay(*arguments: str, given: str = "", environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_here("replay", *arguments, answer=given, environ={"XDG_RUNTIME_DIR": "/nonexistent", **(environ or {})})


def changes(answer: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert answer.returncode == 0
    assert answer.stderr == "" if answer.stdout else "no alerts" in answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def lines(losses: Iterable[Any], **more: Any) -> str:
    """Return one pushed step per loss, as lines of JSON."""
    pushed = [{"step": step, "time": BEGIN + step, "values": {"loss": loss}} for step, loss in enumerate(losses)]
    return "".join(f"{json.dumps({**one, **more})}\n" for one in pushed)


def losses(count: int = 300) -> list[float]:
    """Return the losses of a healthy training."""
    chance = random.Random(7)
    return [2 + 3 * math.exp(-step / 80) + chance.gauss(0, 0.01) for step in range(count)]


def ill() -> list[Any]:
    """Return the losses of `losses` with a spike, NaN in three forms, and an infinity."""
    found: list[Any] = losses()
    found[200:204] = [9.0] * 4
    found[250:254] = ["nan", math.nan, "NaN", math.inf]
    return found


def test_an_alert_change_is_a_json_line(tmp_path: Path) -> None:
    file = tmp_path / "pushes.jsonl"
    file.write_text(lines(ill()))
    found = changes(replay(str(file)))
    assert {tuple(one) for one in found} == {("alert", "state", "severity", "key", "rank", "index", "step", "message")}
    assert ("LossSpike", "firing", 203) in [(one["alert"], one["state"], one["index"]) for one in found]
    nonfinite = [(one["index"], one["state"]) for one in found if one["alert"] == "NonFinite"]
    assert nonfinite[:4] == [(250, "firing"), (251, "repeated"), (252, "repeated"), (253, "repeated")]
    assert [state for _, state in nonfinite[4:]] == ["resolved"]
    assert all(one["key"] == "loss" and one["rank"] == 0 and one["step"] == one["index"] for one in found)
    assert all(one["message"] for one in found)


def test_csv_is_read_as_export_writes_it_and_an_invalid_line_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "pushes.csv"
    rows = [f"0,0,{step},{BEGIN + step},{float(loss)!r}\n" for step, loss in enumerate(ill())]
    file.write_text("".join(["attempt,rank,step,time,loss\n", *rows]))
    pushes = tmp_path / "pushes.jsonl"
    pushes.write_text(lines(ill()))
    assert changes(replay(str(file))) == changes(replay(str(pushes)))
    answer = replay("-", given="step,loss\n0,high\n")
    assert (answer.returncode, answer.stderr) == (
        *(2, "trackside: standard input: line 2: a number is expected for 'loss', not 'high'\n"),
    )


def test_lines_that_are_invalid_for_one_reason_are_reported_once() -> None:
    answer = replay("-", given='{"step": 1}\n' * 200)
    assert answer.stderr.splitlines()[:2] == [
        'trackside: standard input: line 1: "values" is required: numbers by key',
        "trackside: standard input: 199 more lines are invalid",
    ]


def test_a_healthy_training_has_no_findings_and_the_series_examined_are_named() -> None:
    answer = replay("-", given=lines(losses(300)))
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == (
        "trackside: 300 samples of 1 monitored key (loss), 1 rank: no alerts; alerts about whole runs, as TrainingStalled, "
        "are not replayed\n"
    )
    answer = replay("-", "--severity=warning", given=lines(losses(3000)))
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "3,000 samples of 1 monitored key (loss), 1 rank: no alert matches" in answer.stderr
    assert "0 samples of 0 monitored keys, 0 ranks: no alerts;" in replay("-", given='{"values": {"x": 1}}').stderr


def test_the_configuration_counts(tmp_path: Path) -> None:
    def alerts(answer: subprocess.CompletedProcess[str]) -> set[str]:
        return {json.loads(line)["alert"] for line in answer.stdout.splitlines()}

    file = tmp_path / "trackside.yml"
    file.write_text("alerts: {'off': [NonFinite], thresholds: {loss-spike-ratio: 50}}\n")
    assert {"NonFinite", "LossSpike"} <= alerts(replay("-", given=lines(ill())))
    assert not {"NonFinite", "LossSpike"} & alerts(replay("-", f"--config.file={file}", given=lines(ill())))
    assert alerts(replay("-", "--only=NonFinite", f"--config.file={file}", given=lines(ill()))) == {"NonFinite"}
    environ = {"TRACKSIDE_ALERTS__OFF": "NonFinite"}
    assert "NonFinite" not in alerts(replay("-", given=lines(ill()), environ=environ))
    file.write_text("alerts: {thresholds: {loss-spike: 50}}\n")
    answer = replay("-", f"--config.file={file}", given="")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "no such setting; did you mean alerts.thresholds.loss-spike-" in answer.stderr
    file.write_text("alerts: {rules: [{alert: High, metric: 'key:loss', above: 3}]}\n")
    answer = replay("-", f"--config.file={file}", given=lines(ill()))
    assert answer.stderr == "trackside: alerts.rules are not replayed: High\n"


def test_standard_input_and_a_pipe_are_files_too(tmp_path: Path) -> None:
    file = tmp_path / "pushes.jsonl"
    file.write_text(lines(ill()))
    wanted = replay(str(file)).stdout
    assert wanted
    assert replay("-", given=lines(ill())).stdout == wanted
    forked = processes.run(command("replay", "/dev/stdin"), input=lines(ill()), check=True)
    assert forked.stdout == wanted


def test_ranks_are_apart() -> None:
    both = [line for pair in zip(lines(ill()).splitlines(), lines(losses(), rank=1).splitlines()) for line in pair]  # noqa: B905
    found = changes(replay("-", "--severity=warning", given="\n".join(both)))
    assert {one["rank"] for one in found} == {0}
    assert next(one["index"] for one in found if one["alert"] == "NonFinite") == 500


def test_alerts_are_chosen_by_name_and_severity() -> None:
    alone = changes(replay("-", "--only=NonFinite", given=lines(ill())))
    assert {one["alert"] for one in alone} == {"NonFinite"}
    critical = changes(replay("-", "--severity", "critical", given=lines(ill())))
    assert critical
    assert {one["severity"] for one in critical} == {"critical"}
    refused = replay("-", "--only=Everything")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "NonFinite" in refused.stderr
    assert replay("-", "--severity=bad").returncode == 2


def test_a_summary_counts() -> None:
    answer = replay("-", "--summary", "--only=NonFinite", given=lines(ill()))
    header, line = answer.stdout.splitlines()
    assert header.split() == ["ALERT", "SEVERITY", "KEY", "RANKS", "FIRING", "REPEATED", "RESOLVED"]
    assert line.split()[0] == "NonFinite"
    assert line.split()[2:] == ["loss", "1", "1", "3", "1"]
    assert replay("-", "--summary", given=lines(losses(20))).stdout == ""


def test_bad_lines_are_named_and_the_rest_is_replayed() -> None:
    good = lines(ill()).splitlines()
    answer = replay("-", given="\n".join([*good[:100], *["nonsense"] * 15, '{"values": {"loss": "x"}}', *good[100:]]))
    reported = answer.stderr.splitlines()
    assert answer.returncode == 0
    assert len(reported) == 3
    assert reported[0].startswith("trackside: standard input: line 101: one JSON object per line is expected")
    assert reported[-1] == "trackside: standard input: 14 more lines are invalid"
    assert ("NonFinite", 266) in [(one["alert"], one["index"]) for one in map(json.loads, answer.stdout.splitlines())]


@pytest.mark.parametrize("name", ["nowhere.jsonl", "", "a" * 5000, "docs"])
def test_what_is_neither_file_nor_run_is_refused(name: str, tmp_path: Path) -> None:
    answer = replay(name, f"--storage.path={tmp_path}")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("trackside: ")
    assert "no such file, and no such run" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    answer = replay("/proc/self/mem")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "trackside: /proc/self/mem: input/output error\n"


def test_a_reader_that_closes_its_end_causes_no_error_message() -> None:
    given = lines([math.nan] * 20_000)
    shell = f"{' '.join(command('replay', '-'))} | head -n 2; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["bash", "-c", shell],
        input=given,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert answer.stdout.count("\n") == 2
    assert answer.stderr == ""


def test_findings_in_a_beginning_do_not_depend_on_what_follows() -> None:
    pushed = lines(ill()).splitlines()
    whole = changes(replay("-", given="\n".join(pushed)))
    for count in (1, 200, 201, 252):
        beginning = changes(replay("-", given="\n".join(pushed[:count])))
        assert beginning == [one for one in whole if one["index"] < count]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A history with a run of two ranks, whose step 400 took 12 s instead of one."""
    pushes = [
        (step, round((BEGIN + step + 11 * (step > 400)) * 1e6), {"loss": float(loss), "tokens": 5.0})
        for step, loss in enumerate([*ill(), *losses()])
    ]
    directory = tmp_path / "history"
    with history(directory) as one:
        one.put([opened("aaaa1111", name="gpt-small", rank=rank, world=2) for rank in (0, 1)])
        one.put([ingested("aaaa1111", pushes), ingested("aaaa1111", pushes[:100], rank=1), finished("aaaa1111")])
    return directory


def _as_stored(found: list[dict[str, Any]]) -> None:
    first = {one["alert"]: (one["index"], one["step"], one["key"]) for one in reversed(found)}
    assert first["NonFinite"] == (250, 250, "loss")
    assert first["LossSpike"][:2] == (203, 203)
    assert first["SlowStep"] == (400, 400, "step_duration_seconds")


def test_a_stored_run_is_replayed_without_a_daemon(stored: Path, tmp_path: Path) -> None:
    where = f"--storage.path={stored}"
    found = changes(replay("gpt-small", where))
    _as_stored(found)
    assert changes(replay("aaaa", where)) == found
    off = {"TRACKSIDE_ALERTS__OFF": "NonFinite@gpt-*,SlowStep@other"}
    some = {one["alert"] for one in changes(replay("gpt-small", where, environ=off))}
    assert "SlowStep" in some
    assert "NonFinite" not in some
    exported = tmp_path / "run.jsonl"
    processes.run(command("export", "gpt-small", "--format=jsonl", f"--output={exported}", where), check=True)
    of_file = changes(replay(str(exported)))
    assert [(one["alert"], one["step"]) for one in of_file] == [
        (one["alert"], one["step"]) for one in found if one["key"] == "loss"
    ]


def test_among_several_runs_of_a_name_the_replayed_one_is_named(tmp_path: Path) -> None:
    with history(tmp_path / "history") as one:
        for uid in ("aaaa1111", "bbbb2222"):
            one.put([opened(uid, name="train")])
            one.put([ingested(uid, [(1, 0, {"loss": 1.0})])])
    answer = replay("train", f"--storage.path={tmp_path / 'history'}")
    assert "trackside: run train: the newest of 2, " in answer.stderr
    assert "the newest" not in replay("aaaa", f"--storage.path={tmp_path / 'history'}").stderr


def test_a_stored_run_is_replayed_while_a_daemon_runs(
    stored: Path, place: Path, start_daemon: Callable[..., Daemon]
) -> None:
    found = changes(replay("gpt-small", f"--storage.path={stored}"))
    (place / "history").symlink_to(stored)
    daemon = start_daemon("--no-collector.gpu")
    assert changes(replay("gpt-small", environ={"TRACKSIDE_ENDPOINT": daemon.endpoint})) == found
    _as_stored(found)


@pytest.mark.parametrize(
    ("kind", "columns", "alert", "late"),
    [
        ("nan", {"loss": ("loss", 1.0)}, "NonFinite", 0),
        ("restart", {"loss": ("loss", 1.0)}, "LossRestart", 24),
        ("leak", {"rss_mb": ("process_resident_bytes", 2.0**20)}, "HostMemoryLeak", 200),
    ],
)
def test_what_is_labelled_in_a_real_log_is_found(
    kind: str, columns: dict[str, tuple[str, float]], alert: str, late: int
) -> None:
    if not DATA.is_dir():
        pytest.skip(f"there are no labelled logs at {DATA}")
    with (DATA / "dev" / "labels.jsonl").open() as stream:
        event = next(one for one in map(json.loads, stream) if one["kind"] == kind and one["key"] in columns)
    with (DATA / "dev" / event["dataset"] / f"{event['run']}.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row[event["key"]]]
    pushed = [
        {
            "step": int(float(row["step"])),
            "values": {
                key: repr(float(row[column]) * unit) if row[column] == "nan" else float(row[column]) * unit
                for column, (key, unit) in columns.items()
            },
        }
        for row in rows
    ]
    found = changes(replay("-", f"--only={alert}", given="".join(f"{json.dumps(one)}\n" for one in pushed)))
    delays = [one["index"] - event["start"] for one in found if one["state"] == "firing"]
    assert any(0 <= delay <= late for delay in delays), delays


def test_a_run_of_tensorboard_is_replayed_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "exp1" / file_name()
    events(path, range(60), "train/loss")
    healthy, ill = (
        encoded_record(encoded_event(Row(0, 0, True, 30, (EVENTS_BEGIN + 30) * 10**6, {"train/loss": loss})))
        for loss in (15.0, math.nan)
    )
    path.write_bytes(path.read_bytes().replace(healthy, ill) + b"torn")
    for place in (path, path.parent, tmp_path / "runs"):
        answer = replay(str(place), "--only", "NonFinite")
        first, second = map(json.loads, answer.stdout.splitlines())
        assert (first["alert"], first["state"], first["step"], first["key"]) == (
            "NonFinite",
            "firing",
            30,
            "train/loss",
        )
        assert second["state"] == "resolved"
        assert "left out: 1 incomplete last record of 4 bytes" in answer.stderr
    events(tmp_path / "runs" / "exp2" / file_name(), range(3))
    refused = replay(str(tmp_path / "runs"))
    assert refused.stderr == (
        f"trackside: {tmp_path}/runs: there are 2 runs; give the path of one, or import them: exp1, exp2\n"
    )
