"""`trackside.open`: every sample in Python, compared value by value with what was pushed."""

from __future__ import annotations

import math
import subprocess
import sys
from array import array
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from histories import BEGIN, column, finished, history, ingested, opened
from history.builders import bits
from history.test_codec import COLUMNS, INTEGERS
from hypothesis import given
from hypothesis import strategies as st
from processes import clean_environ

import trackside
from trackside_daemon.history import codec
from trackside_daemon.history.codec import encode_axis
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.frames import rank_series
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.record import run_changes
from trackside_daemon.model.records import Alert, Event, MachineSample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BASE = round(BEGIN * 1e6)
ODD = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 1 / 3, float(np.float32(0.3))]
HOSTILE = "<script>alert(1)</script>"

Pushed = list[tuple[int, int, dict[str, float]]]


def pushes(rank: int) -> Pushed:
    """Return pushes with odd values, and keys that come together, seldom, twice in a step, and out of order in time."""
    found: Pushed = [
        (step, BASE + step * 1000 + rank, {"loss": ODD[step % 8], "lr": step / 1000}) for step in range(500)
    ]
    found += [(step, BASE + step * 1000 + 7, {"eval/bleu": 30.0 + step}) for step in range(0, 500, 100)]
    found += [(500, BASE, {"loss": 1.0, "step": 5.0}), (500, BASE, {"loss": 2.0, "step": 6.0})]
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a history with packed samples and fresh ones."""
    path = tmp_path_factory.mktemp("frames")
    with history(path) as made:
        made.put([opened("mixed", name=HOSTILE, config={"lr": 0.1}, rank=rank) for rank in (0, 1)])
        made.put([ingested("mixed", pushes(rank), rank=rank) for rank in (0, 1)])
        made.put([opened("mixed", name=HOSTILE, attempt=1), column("mixed", ["loss"], 9000, attempt=1)])
        made.wait_until_packed()
        made.put(
            [ingested("mixed", [(9000, BASE * 2, {"loss": 3.5})], attempt=1, number=2), finished("mixed", attempt=1)]
        )
        made.put([opened("empty")])
    return path


def by_push(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows in one order, with the bits of their values."""
    found = []
    for row in rows:
        values = {
            key: value
            for key, value in row.items()
            if key not in {"attempt", "rank", "step", "time"} and value is not None
        }
        named = sorted((key, bits([value])) for key, value in values.items())
        found.append((row["attempt"], row["rank"], row["step"], row["time"], *named))
    return sorted(found, key=repr)


def by_value(column: list[Any]) -> list[str]:
    """Return values as text, in which NaN equals NaN and null does not."""
    return [repr(value) for value in column]


def expected(attempt: int, rank: int, pushed: Pushed) -> list[dict[str, Any]]:
    renamed = [
        (step, time, {"step (key)" if key == "step" else key: value for key, value in values.items()})
        for step, time, values in pushed
    ]
    return [{"attempt": attempt, "rank": rank, "step": step, "time": time, **values} for step, time, values in renamed]


def test_arrow_has_each_push_as_a_row_with_every_bit(directory: Path) -> None:
    table = trackside.open("mixed", path=directory).to_arrow()
    assert table.column_names == ["attempt", "rank", "step", "time", "loss", "lr", "eval/bleu", "step (key)"]
    assert str(table.schema.field("time").type) == "timestamp[us, tz=UTC]"
    times = table["time"].cast("int64")
    rows = table.set_column(3, "time", times).to_pylist()
    later = [
        {"attempt": 1, "rank": 0, "step": step, "time": round((BEGIN + 1000 + step) * 1e6), "loss": float(step)}
        for step in range(9000)
    ]
    later.append({"attempt": 1, "rank": 0, "step": 9000, "time": BASE * 2, "loss": 3.5})
    assert by_push(rows) == by_push([*expected(0, 0, pushes(0)), *expected(0, 1, pushes(1)), *later])
    order = list(zip(table["attempt"].to_pylist(), table["rank"].to_pylist(), times.to_pylist(), strict=True))
    assert order == sorted(order)


def test_polars_has_the_same(directory: Path) -> None:
    pytest.importorskip("polars", reason="make soak installs polars")
    run = trackside.open("mixed", path=directory)
    arrow = run.to_arrow(["lr", "loss"], ranks=[1], attempt=0)
    polars = run.to_polars(["lr", "loss"], ranks=[1], attempt=0)
    assert polars.columns == arrow.column_names
    for name in ("lr", "loss", "step"):
        assert by_value(polars[name].to_list()) == by_value(arrow[name].to_pylist())


def test_pandas_has_the_same(directory: Path) -> None:
    run = trackside.open("mixed", path=directory)
    arrow = run.to_arrow(["lr", "loss"], ranks=[1], attempt=0)
    assert arrow.column_names[4:] == ["lr", "loss"]
    frame = run.to_pandas(["lr", "loss"], ranks=[1], attempt=0)
    assert list(frame.columns) == arrow.column_names
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"
    for name in ("lr", "loss", "step"):
        assert frame[name].to_numpy().tobytes() == arrow[name].to_numpy().tobytes()
    assert len(run.to_pandas("loss")) == 502 + 502 + 9001


def test_series_need_no_library(directory: Path) -> None:
    run = trackside.open("mixed", path=directory)
    first, second, later = run.series("loss")
    assert [(one.attempt, one.rank) for one in (first, second, later)] == [(0, 0), (0, 1), (1, 0)]
    assert bits(first.values) == bits([values["loss"] for _, _, values in pushes(0) if "loss" in values])
    assert list(later.steps) == list(range(9001))
    assert np.asarray(later.times_us).dtype == np.int64
    assert list(run.series("loss", attempt=1, steps=(10, 12))[0].values) == [10.0, 11.0, 12.0]
    for question in (
        lambda: run.series(["lr", "los"]),
        lambda: run.to_pandas("los"),
        lambda: run.to_arrow(["lr", "los"]),
    ):
        with pytest.raises(
            trackside.UnknownKeyError, match=r"key 'los': run 'mixed' has no such key; did you mean loss\?"
        ):
            question()
    assert [one.key for one in run.series(["los", "lr"], attempt=0, ranks=1, missing="ignore")] == ["lr"]
    assert run.to_pandas("los", missing="ignore")["los"].isna().all()
    assert run.series("lr", attempt=1) == [], "there is such a key, in another attempt"
    assert repr(second) == "<trackside series 'loss' of rank 1, attempt 0: 502 samples>"
    assert list(later.times)[:2] == [BEGIN + 1000, BEGIN + 1001]


def test_a_rank_is_a_number_or_several(directory: Path) -> None:
    run = trackside.open("mixed", path=directory)
    for ranks, found in ((0, {0}), (1, {1}), ([0, 1], {0, 1}), ([], set()), ([7], set()), (None, {0, 1})):
        assert {one.rank for one in run.series("lr", ranks=ranks)} == found
        assert set(run.to_pandas("lr", ranks=ranks)["rank"]) == found


def test_what_a_history_shows(directory: Path) -> None:
    found = trackside.open(path=directory)
    assert sorted(run.id for run in found.runs()) == ["empty", "mixed"]
    assert [run.name for run in found.runs(state="finished")] == [HOSTILE]
    assert [run.id for run in found.runs(query="-id=empty", limit=1)] == ["mixed"]
    run = found[HOSTILE]
    assert (run.config, run.keys) == ({"lr": 0.1}, ["loss", "lr", "eval/bleu", "step"])
    assert len({run, found[HOSTILE], found["empty"]}) == 2
    assert (run.state, run.step, run.started, run.ended) == ("finished", 9000, BEGIN, BEGIN + 1060)
    assert list(found.to_pandas()["id"]) == [one.id for one in found.runs()]
    for shown in (found._repr_html_(), run._repr_html_()):
        assert "&lt;script&gt;" in shown
        assert "<script>" not in shown
    assert len(trackside.open("empty", path=directory / "history.db").to_arrow()) == 0


def test_a_loss_that_is_not_finite_is_a_float(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        for number, loss in enumerate((0.5, math.nan, -math.inf)):
            run = f"run-{number}"
            made.put([opened(run, started=BEGIN - number), ingested(run, [(1, BASE, {"loss": loss})])])
            made.put([finished(run)] if number < 2 else [])
        made.wait_until_packed()
    found = trackside.open(path=tmp_path)
    assert bits([run.about["loss"] for run in found.runs()]) == bits([0.5, math.nan, -math.inf])
    assert math.isnan(trackside.open("run-1", path=tmp_path).about["loss"])
    assert found.to_pandas()["loss"].dtype == float
    assert list(found.to_pandas().sort_values("loss")["id"]) == ["run-2", "run-0", "run-1"]


def test_a_live_run_has_its_newest_step_and_state_each_time(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        made.put([opened("live"), ingested("live", [(7, BASE, {"loss": 0.5})])])
        run, (listed,) = trackside.open("live", path=tmp_path), trackside.open(path=tmp_path).runs()
        assert [(one.about["step"], one.about["loss"], one.about["state"]) for one in (run, listed)] == [
            (7, 0.5, "starting")
        ] * 2
        made.put([ingested("live", [(8, BASE, {"loss": 0.25})], number=2)])
        assert (run.about["step"], listed.about["loss"]) == (8, 0.25)
        made.put([finished("live")])
        made.wait_until_packed()
        assert run.about["state"] == listed.about["state"] == "finished"
        assert "attempt_list" not in trackside.open(path=tmp_path).to_pandas()


def test_all_questions_about_a_run_that_was_deleted_meanwhile_are_errors(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        made.put([opened("gone"), ingested("gone", [(7, BASE, {"loss": 0.5})])])
        run = trackside.open("gone", path=tmp_path)
        made.writer.call(lambda store: run_changes.delete(store, "gone")).result(60)
    questions: list[Callable[[], object]] = [
        run.series,
        run.to_pandas,
        run.to_arrow,
        run.media,
        run._repr_html_,
        *(lambda name=name: getattr(run, name) for name in ("about", "keys", "config")),
    ]
    for question in questions:
        with pytest.raises(UnknownRunError, match="run 'gone': there is none"):
            question()


def test_errors_are_one_line(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError, match="run 'x': there is none; newest:"):
        trackside.open("x", path=directory)
    with pytest.raises(KeyError, match="there is none"):
        trackside.open(path=directory)["x"]
    with pytest.raises(HistoryError, match="there is no history here yet"):
        trackside.open("x", path=tmp_path)


def test_a_table_of_runs_is_flat_ordered_and_filtered(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        for number, lr in enumerate((0.3, 0.1, 0.2)):
            run = f"s{number}"
            made.put([opened(run, config={"optim": {"lr": lr}}, started=BEGIN + number)])
            made.put(
                [
                    column(run, ["loss"], 3 + number),
                    Event(run, 0, BEGIN, "summary", 0, None, {"best": -lr}),
                    finished(run),
                ]
            )
        made.put([opened("bare", started=BEGIN + 9)])
        made.wait_until_packed()
    found = trackside.open(path=tmp_path)
    table = found.to_pandas("loss", query="finished", order_by="config.optim.lr")
    assert list(table["name"]) == ["s1", "s2", "s0"]
    assert list(table["config.optim.lr"]) == [0.1, 0.2, 0.3]
    assert list(table["summary.best"]) == [-0.1, -0.2, -0.3]
    assert list(table["loss.last"]) == list(table["loss.max"]) == [3.0, 4.0, 2.0]
    assert str(table["started"].dt.tz) == "UTC"
    assert [run.id for run in found.runs(order_by="-loss")] == ["s2", "s1", "s0", "bare"]
    assert [run.id for run in found.runs(since=BEGIN + 1, until=datetime.fromtimestamp(BEGIN + 2, timezone.utc))] == [
        "s2",
        "s1",
    ]
    assert [run.id for run in found.runs(since="2023-11-14", limit=1)] == ["bare"]
    wrong: dict[str, dict[str, Any]] = {
        "state: must be one of starting": {"state": "bogus"},
        "did you mean optim.lr": {"order_by": "optim.lt"},
        "neither a duration such as 7d": {"since": "yesterday"},
        "limit: must be 0": {"limit": -1},
    }
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            found.runs(**options)
    with pytest.raises(trackside.UnknownKeyError, match=r"key 'los': no run has it; did you mean loss\?"):
        found.to_pandas("los")


def test_the_last_value_of_a_run_that_resumed_and_diverged_is_nan(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        for attempt, value in enumerate((1.0, float("nan"))):
            pushed = ingested("r", [(attempt, round((BEGIN + 1000 * attempt) * 1e6), {"val": value})], attempt=attempt)
            made.put([opened("r", attempt=attempt), pushed, finished("r", attempt=attempt)])
        made.wait_until_packed()
    table = trackside.open(path=tmp_path).to_pandas("val", order_by="val")
    assert (table["val.last"].isna().all(), list(table["val.max"])) == (True, [1.0])
    assert not {"config", "summary"} & {*table.columns}  # a run without them has no columns of these names


def test_series_of_the_machine_are_joined_to_the_steps(tmp_path: Path) -> None:
    watts, free = 'trackside_gpu_power_watts{gpu="%d"}', "trackside_host_memory_available_bytes"
    with history(tmp_path) as made:
        made.put([opened("r"), column("r", ["loss"], 10)])
        for second in (-1, 2.5, 4.5):
            values = {watts % 0: 100 + second, watts % 1: 200 + second, free: 7.0}
            made.put([MachineSample(BEGIN + second, values)])
        made.put([finished("r")])
        made.wait_until_packed()
    run = trackside.open("r", path=tmp_path)
    assert [one.labels for one in run.series("trackside_gpu_power_watts")] == [{"gpu": "0"}, {"gpu": "1"}]
    table = run.machine_to_pandas(["trackside_gpu_power_watts", free], join="loss")
    assert set(table.columns) == {"time", "step", "loss", "gpu", "trackside_gpu_power_watts", free}
    gpus = table[table["gpu"].notna()]
    assert list(gpus["gpu"]) == ["0", "1", "0", "1"]
    assert list(gpus["step"]) == [2, 2, 4, 4]
    assert list(gpus["loss"]) == [2.0, 2.0, 4.0, 4.0]
    assert list(gpus["trackside_gpu_power_watts"]) == [102.5, 202.5, 104.5, 204.5]
    assert list(table[table["gpu"].isna()][free]) == [7.0, 7.0]
    with history(tmp_path / "more") as made:  # a run without a push, and a key that the lowest rank does not have
        made.put([opened("idle"), opened("two", rank=0), column("two", ["loss"], 5), opened("two", rank=1)])
        made.put([column("two", ["acc"], 5, rank=1), MachineSample(BEGIN + 1, {free: 7.0})])
        made.put([finished("idle"), finished("two")])
        made.wait_until_packed()
    idle = trackside.open("idle", path=tmp_path / "more").machine_to_pandas(free)
    assert (list(idle[free]), idle["step"].isna().all()) == ([7.0], True)
    assert trackside.open("two", path=tmp_path / "more").machine_to_pandas(free, join=["loss", "acc"])["loss"][0] == 1.0
    with pytest.raises(trackside.UnknownKeyError, match="of the machine, not of a rank; use machine_to_pandas"):
        run.to_pandas("trackside_gpu_power_watts")


def test_a_run_has_its_events_alerts_checkpoints_and_diagnosis(tmp_path: Path) -> None:
    with history(tmp_path) as made:
        made.put([opened("r", tags=["a"]), column("r", ["loss"], 10)])
        made.put(
            [Event("r", 0, BEGIN + 1, "note", 0, 5, {"x": 7}), Alert("Spike", "warning", BEGIN, "r", {}, "s", "d")]
        )
        made.put([finished("r", state="failed", cause="OOM killed")])
        made.wait_until_packed()
    run = trackside.open("r", path=tmp_path)
    assert (run.tags, run.summary, run.checkpoints()) == (["a"], {}, [])
    assert [(one["kind"], one["fields"]) for one in run.events] == [("note", {"x": 7})]
    assert [one["alert"] for one in run.alerts] == ["Spike"]
    assert run.diagnosis()["health"] == "broken"
    assert run.refresh() is run


WITHOUT = """
import json, sys
sys.modules.update(dict.fromkeys(["numpy", "pyarrow", "pydantic", "starlette", "typer", "zmq"]))
import trackside
run = trackside.open("mixed", path=sys.argv[1])
print(len(run.series("lr")[0].values))
try:
    run.to_arrow()
except ModuleNotFoundError as error:
    print(error)
"""


def test_it_needs_neither_the_daemon_s_libraries_nor_numpy(directory: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(directory)]
    ran = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == ["500", "numpy is not installed; pip install 'trackside[arrow]'"], ran.stderr


@given(COLUMNS)
def test_values_are_decoded_as_the_history_does(values: list[float]) -> None:
    data = codec.encode_values(array("d", values))
    out = np.empty(len(values))
    rank_series.decode_values(data, out)
    assert bits(out.tolist()) == bits(codec.decode_values(data))


@given(INTEGERS)
def test_steps_and_times_are_decoded_as_the_history_does(column: list[int]) -> None:
    steps, times = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    rank_series.decode_axis(encode_axis(array("q", column), array("q", column[::-1])), steps, times)
    assert (steps.tolist(), times.tolist()) == (column, column[::-1])


@given(COLUMNS.filter(bool), st.data())
def test_damaged_bytes_are_recognized(values: list[float], data: st.DataObject) -> None:
    whole = codec.encode_values(array("d", values))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ValueError, match=r"damaged|unknown|invalid literal"):
        rank_series.decode_values(cut, np.empty(len(values)))
