"""Logs of W&B: equal to what its own reader finds, in fragments, damaged, and while they grow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bridges.wandb_logs import MAKERS, expected, fragment, logged, offline, row
from processes import require

from trackside_daemon.bridges.wandb.log_run import MAGIC, LogRun
from trackside_daemon.history.files.items import Push, RunEntry

if TYPE_CHECKING:
    from bridges.wandb_logs import Row

FILES = Path(__file__).parent / "files"


def rows(run: LogRun, *, final: bool = True) -> list[Row]:
    """Return what is new in a run's log."""
    pushes = [item for item in run.read(final=final) if isinstance(item, Push)]
    return [(push.step, dict(zip(push.keys, push.values, strict=True))) for push in pushes]


def test_a_log_is_read_with_everything_that_the_history_has_a_place_for() -> None:
    run = LogRun("abc", [FILES / "plain.wandb"])
    *pushes, header = run.items()
    found = json.loads((FILES / "plain.wandb.json").read_text(encoding="utf-8"))
    assert [(p.step, dict(zip(p.keys, p.values, strict=True))) for p in pushes if isinstance(p, Push)] == [
        (step, values) for step, values in found
    ]
    assert isinstance(header, RunEntry)
    (attempt,) = header.fields["attempt_list"]
    assert (run.name, list(header.fields["tags"])) == ("first run", ["a", "b"])
    assert attempt["config"] == {"lr": 0.1, "model": {"depth": 3}}
    assert (attempt["state"], attempt["cause"]) == ("finished", "")
    assert attempt["ended"] >= attempt["started"] > 1.7e9
    assert run.notes() == []


def test_a_number_that_is_not_written_as_json_retains_its_sign() -> None:
    time = b"\x0a\x0a_timestamp\x82\x01\x0a1700000000"
    items = (time, b"\x0a\x01a\x28\x03", b"\x0a\x01b\x28\x04")  # -2 and 2, as zigzag
    history = b"".join(b"\x0a%c%b" % (len(item), item) for item in items)
    (push,) = LogRun("abc", [FILES / "plain.wandb"])._record(0, b"\x12%c%b" % (len(history), history))
    assert isinstance(push, Push)
    assert dict(zip(push.keys, push.values, strict=True)) == {"a": -2.0, "b": 2.0}


def test_a_torn_record_is_waited_for_and_reported_at_the_end(tmp_path: Path) -> None:
    data = (FILES / "plain.wandb").read_bytes()
    path = tmp_path / "run-a.wandb"
    path.write_bytes(data[:2000])
    run, torn = LogRun("a", [path]), LogRun("c", [path])
    first = rows(run, final=False)
    assert first == rows(torn)
    assert run.notes() == []
    assert torn.notes() == ["left out: 1 incomplete last record of 117 bytes: run-a.wandb at byte 1,883"]
    path.write_bytes(data)
    assert [*first, *rows(run)] == rows(LogRun("b", [path]))


def test_a_damaged_record_costs_itself_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run-a.wandb"
    lines = [fragment(row(step)) for step in range(100)]
    begin = len(MAGIC) + sum(map(len, lines[:5]))
    for place in range(len(lines[5])):  # checksum, length, kind, record
        data = bytearray(MAGIC + b"".join(lines))
        data[begin + place] ^= 0xFF
        path.write_bytes(data)
        run = LogRun("a", [path])
        assert [step for step, _ in rows(run)] == [step for step in range(100) if step != 5], place
        assert run.notes() == [f"left out: 1 damaged part of {len(lines[5])} bytes: run-a.wandb at byte {begin}"]


def test_damage_costs_the_records_that_it_hits_also_where_blocks_end_and_records_have_several_fragments(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run-a.wandb"
    data = bytearray(logged([row(step, size=step % 7 * 9000) for step in range(60)]))
    path.write_bytes(data)
    run = LogRun("a", [path])
    assert [step for step, _ in rows(run)] == list(range(60))
    assert run.notes() == ["left out: 51 non-numeric values: t"]
    for places in ((40_000,), (65_536,), (65_530, 100_000), (9, 500_000)):
        broken = bytearray(data)
        for place in places:
            broken[place] ^= 0xFF
        broken[300_000:340_000] = bytes(40_000)
        path.write_bytes(broken)
        run = LogRun("a", [path])
        left = [step for step, _ in rows(run)]
        assert 60 - 6 <= len(left) < 60
        assert left == sorted(left)
        assert any("damaged part" in note for note in run.notes())


def test_a_record_of_very_many_fragments_is_read_in_no_time(tmp_path: Path) -> None:
    (tmp_path / "run-a.wandb").write_bytes(MAGIC + fragment(row(1), 2) + 30_000 * fragment(b"", 3) + fragment(b"", 4))
    begun = time.thread_time()
    assert [step for step, _ in rows(LogRun("a", [tmp_path / "run-a.wandb"]))] == [1]
    assert time.thread_time() - begun < 3.0


@pytest.mark.filterwarnings("ignore:The '.*' attribute with value:UserWarning")  # W&B's older client, newer pydantic
@pytest.mark.filterwarnings(
    "ignore:subprocess .* is still running:ResourceWarning"
)  # it has no other end of its service
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
