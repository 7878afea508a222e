"""Logs of W&B: equal to what its own reader finds, in fragments, damaged, and while they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bridges.wandb_logs import MAKERS, expected, offline
from processes import require

from trackside_daemon.bridges.wandb.log_run import LogRun
from trackside_daemon.history.files.items import Push, RunHeader

if TYPE_CHECKING:
    from bridges.wandb_logs import Row

FILES = Path(__file__).parent / "files"


def rows(run: LogRun) -> list[Row]:
    """Return what is new in a run's log."""
    pushes = [item for item in run.read() if isinstance(item, Push)]
    return [(push.step, dict(zip(push.keys, push.values, strict=True))) for push in pushes]


def test_a_log_is_read_with_everything_that_the_history_has_a_place_for() -> None:
    run = LogRun("abc", [FILES / "plain.wandb"])
    *pushes, header = run.items()
    found = json.loads((FILES / "plain.wandb.json").read_text(encoding="utf-8"))
    assert [(p.step, dict(zip(p.keys, p.values, strict=True))) for p in pushes if isinstance(p, Push)] == [
        (step, values) for step, values in found
    ]
    assert isinstance(header, RunHeader)
    (attempt,) = header.run["attempt_list"]
    assert (run.name, list(header.run["tags"])) == ("first run", ["a", "b"])
    assert attempt["config"] == {"lr": 0.1, "model": {"depth": 3}}
    assert (attempt["state"], attempt["cause"]) == ("finished", "")
    assert attempt["ended"] >= attempt["started"] > 1.7e9
    assert run.notes() == []


def test_a_number_that_is_not_written_as_json_keeps_its_sign() -> None:
    time = b"\x0a\x0a_timestamp\x82\x01\x0a1700000000"
    items = (time, b"\x0a\x01a\x28\x03", b"\x0a\x01b\x28\x04")  # -2 and 2, as zigzag
    history = b"".join(b"\x0a%c%b" % (len(item), item) for item in items)
    (push,) = LogRun("abc", [FILES / "plain.wandb"])._record(0, b"\x12%c%b" % (len(history), history))
    assert isinstance(push, Push)
    assert dict(zip(push.keys, push.values, strict=True)) == {"a": -2.0, "b": 2.0}


def test_a_torn_record_is_waited_for(tmp_path: Path) -> None:
    data = (FILES / "plain.wandb").read_bytes()
    path = tmp_path / "run-a.wandb"
    path.write_bytes(data[:2000])
    run = LogRun("a", [path])
    first = rows(run)
    assert first
    assert "the last record is incomplete" in run.notes()[0]
    path.write_bytes(data)
    assert [*first, *rows(run)] == rows(LogRun("b", [path]))


def test_a_damaged_record_costs_its_block_and_no_more(tmp_path: Path) -> None:
    data = bytearray((FILES / "plain.wandb").read_bytes())
    data[3000] ^= 1
    path = tmp_path / "run-a.wandb"
    path.write_bytes(data)
    run = LogRun("a", [path])
    assert rows(run)
    assert "1 records that are damaged were skipped" in run.notes()[0]


def test_rows_equal_those_of_the_own_reader_of_wandb(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("make soak installs W&B")
    require("wandb")
    for name, (log, options) in MAKERS.items():
        directory = tmp_path / name
        directory.mkdir()
        path = offline(directory, log, **options)
        found = rows(LogRun("a", [path]))
        wanted = expected(path)
        assert found
        assert repr([(step, dict(sorted(row.items()))) for step, row in wanted]) == repr(found), name
