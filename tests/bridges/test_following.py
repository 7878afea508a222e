"""Follow files that grow, and that are damaged: what is not complete is waited for, what is damaged is reported once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bridges.directories import BEGIN, events, file_name
from bridges.wandb_logs import fragment, row

import trackside
from trackside.totals.session_totals import Deferred
from trackside_daemon.bridges.following import Follower
from trackside_daemon.bridges.tensorboard.mirror import encoded_record
from trackside_daemon.bridges.wandb.log_run import MAGIC
from trackside_daemon.cli.run.follower import stored_in_daemon
from trackside_daemon.http_client.protobuf import VARINT
from trackside_daemon.questions.runs import MOST_METRICS, Run

FILES = Path(__file__).parent / "files"


class Session:
    """Stands in for the session of the client, and keeps what is pushed."""

    def __init__(self) -> None:
        self.is_open = True
        self.queue = self
        self.pushed: list[tuple[int, dict[str, float]]] = []
        self.aside: list[tuple[int, dict[str, float]]] = []

    def record(self, moment: int, step: int | Deferred, values: dict[str, float]) -> bool:
        del moment
        if isinstance(step, Deferred):
            assert step.aside
            self.aside.append((step.step or 0, values))
        else:
            self.pushed.append((step, values))
        return True

    def describe(self, config: Any) -> None:
        del config

    def event(self, kind: str, **fields: Any) -> None:
        del kind, fields

    def finish(self, status: str) -> None:
        del status
        self.is_open = False


class Followed:
    """A follower of a directory, its warnings, and the steps that it has pushed of its run."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = Session()
        monkeypatch.setattr(trackside, "init", lambda *_, **__: self.session)
        self.warnings: list[str] = []
        self.follower = Follower([str(place)], {}, lambda _: {}, self.warnings.append, find_seconds=0.0)

    def poll(self) -> list[int]:
        """Return the steps that are new."""
        before = len(self.session.pushed)
        self.follower.poll()
        return [step for step, _ in self.session.pushed[before:]]

    def close(self) -> list[int]:
        """Return the steps that the end brings."""
        before = len(self.session.pushed)
        self.follower.close("finished")
        return [step for step, _ in self.session.pushed[before:]]


def test_a_damaged_event_file_is_followed_and_its_damage_reported_once_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = events(tmp_path / "runs" / file_name(), range(10))
    whole = path.read_bytes()
    followed = Followed(tmp_path / "runs", monkeypatch)
    path.write_bytes(whole[:-20])
    assert followed.poll() == [*range(9)]
    damaged = bytearray(whole)
    damaged[-10] ^= 1
    path.write_bytes(damaged)
    os.utime(path, (1.0, 1.0))
    assert followed.poll() == []
    path.write_bytes(bytes(damaged) + whole[-100:] + b"torn")
    assert followed.poll() == [8, 9]
    assert followed.warnings == []
    assert followed.close() == []
    assert [line.partition("left out: ")[2].partition(" of ")[0] for line in followed.warnings] == [
        "1 damaged part",
        "1 incomplete last record",
    ]


def test_steps_of_epochs_stand_aside_and_those_of_a_restart_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(tmp_path / "runs", monkeypatch)
    events(tmp_path / "runs" / file_name(), [*range(10), *range(4)], "batch_loss")
    with (tmp_path / "runs" / file_name()).open("ab") as file:
        for epoch in range(2):
            file.write(events(tmp_path / "part", [epoch], "epoch_loss", BEGIN + 20).read_bytes())
        file.write(events(tmp_path / "part", [4], "batch_loss", BEGIN + 20).read_bytes())
    assert followed.poll() == [*range(10), *range(5)]
    assert followed.session.aside == [(0, {"epoch_loss": 0.0}), (1, {"epoch_loss": 0.5})]


def test_a_message_with_a_right_checksum_that_is_none_does_not_end_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = events(tmp_path / "runs" / file_name(), range(3))
    hostile = b"\x09" + bytes(8) + bytes([2 << 3 | VARINT]) + b"\xff" * 30  # the step is an integer without an end
    path.write_bytes(path.read_bytes() + encoded_record(hostile) + path.read_bytes())
    followed = Followed(tmp_path / "runs", monkeypatch)
    assert followed.poll() == [0, 1, 2, 0, 1, 2]
    followed.close()
    assert "left out: 1 damaged part" in followed.warnings[0]


def test_a_log_of_wandb_is_followed_over_its_damage_and_not_read_again_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run-a.wandb"
    lines = [fragment(row(step)) for step in range(8)]
    log = MAGIC + b"".join(lines[:4]) + b"\xff" + lines[4][1:] + lines[5]
    path.write_bytes(log[:-5])
    followed = Followed(tmp_path, monkeypatch)
    assert followed.poll() == [0, 1, 2, 3]
    path.write_bytes(log)
    assert followed.poll() == [5]
    path.write_bytes(log + lines[6] + fragment(b"\x92\x01\x00"))  # the end, with status 0
    assert followed.poll() == [6]
    assert not followed.session.is_open
    path.write_bytes(log + lines[6] + fragment(b"\x92\x01\x00") + lines[7])
    assert followed.poll() == []
    assert followed.close() == []
    assert len(followed.warnings) == 1
    assert f"left out: 1 damaged part of {len(lines[4])} bytes" in followed.warnings[0]


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("metrics.csv", ("step,lo", "ss,n\n0,0.5,a\n1,0.2", "5,b\nx,1,c\n2,0.5,", "")),
        (
            "trainer_state.json",
            ('{"log_history": [{"step": 0, "loss": 0.5}, {"step": 1, "loss"', ": 0.25}]}", "", ""),
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_read_anew_each_time_is_waited_for_and_its_damage_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, pieces: tuple[str, ...]
) -> None:
    path = tmp_path / "version_0" / name
    path.parent.mkdir()
    followed = Followed(tmp_path, monkeypatch)
    for number, piece in enumerate(pieces):
        with path.open("a") as file:
            file.write(piece)
        os.utime(path, (number, number))
        followed.poll()
        assert followed.warnings == []
    followed.close()
    values = {step: values["loss"] for step, values in followed.session.pushed}
    assert values == {0: 0.5, 1: 0.25, **({2: 0.5} if "csv" in name else {})}
    assert len(followed.session.pushed) == len(values)
    assert len(followed.warnings) == (2 if "csv" in name else 0), followed.warnings


def test_a_metric_of_mlflow_with_an_incomplete_last_line_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = tmp_path / "mlruns" / "0" / "r" / "metrics" / "loss"
    metric.parent.mkdir(parents=True)
    (metric.parent.parent / "meta.yaml").write_text(json.dumps({"run_id": "r"}))
    metric.write_text(f"{BEGIN}000 0.5 0\n{BEGIN}500 0.2")
    followed = Followed(tmp_path, monkeypatch)
    assert followed.poll() == [0]
    metric.write_text(f"{BEGIN}000 0.5 0\n{BEGIN}500 0.25 1\n{BEGIN}900 0.125")
    os.utime(metric, (1.0, 1.0))
    assert followed.poll() == [1]
    assert followed.warnings == []
    assert followed.close() == []
    assert followed.session.pushed == [(0, {"loss": 0.5}), (1, {"loss": 0.25})]
    assert [line.partition(": left")[2] for line in followed.warnings] == [" out: 1 incomplete last line: loss"]


def test_what_is_stored_of_a_run_is_not_that_of_another_one_with_its_id_as_name() -> None:
    asked: list[Run] = []

    def ask(question: Run) -> dict[str, Any]:
        asked.append(question)
        return {"id": "exp" if question.id == "exp" else "another", "metrics": [{"key": "loss", "count": 5}] * 2}

    stored = stored_in_daemon(SimpleNamespace(ask=ask))
    assert [stored(run) for run in ("exp", "ex")] == [{"loss": 10}, {}]
    assert {question.limit for question in asked} == {MOST_METRICS}, "of each key, or its values would come twice"
