"""Frames drawn from the data of a daemon, at every size."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal.fake import BEGUN, alert, gpu, machine, overview, process, run

from trackside_daemon.terminal.frame import DaemonData, render_frame, render_gpus
from trackside_daemon.terminal.histories import render_histories
from trackside_daemon.terminal.plot import PlottedCurve, Point, loss_curve, plot, throughput_curve
from trackside_daemon.terminal.styled_lines import Line, fit, line_width, to_ansi, to_text
from trackside_daemon.terminal.view import ORDERS, CpuShares, StepWindow, View, ordered, render_processes


def drawn(answered: dict[str, Any], width: int = 80, height: int | None = 23, **style: Any) -> list[Line]:
    """Return the lines of a frame."""
    series = [{"key": "loss", "rank": 0, "points": [[1, 1.0, 2.0, 2.0, 2.0], [9, 2.0, 1.0, 1.5, 1.0]]}]
    processes = [process(number) for number in range(2, 40)]
    data = DaemonData(answered, series, "gpt-small-1", machine(), processes)
    panes = render_frame(data, View(**style), width, height)
    return [line for pane in panes for line in pane]


@pytest.mark.parametrize("width", [40, 80, 81, 119, 120, 250])
@pytest.mark.parametrize("height", [8, 12, 23, 60])
@pytest.mark.parametrize("many", [0, 1, 3, 16])
def test_a_frame_has_the_size_that_is_requested(width: int, height: int, many: int) -> None:
    answered = overview(
        runs=[run(f"run-{number}") for number in range(many)],
        gpus=[gpu(number) for number in range(many)],
        alerts=[alert("warning", f"Alert{number}") for number in range(many)],
    )
    for style in ({}, {"enlarged": True}, {"machine": True}):
        lines = drawn(answered, width, height, **style)
        assert {line_width(line) for line in lines} == {width}
        assert len(lines) <= height
        assert len(lines) == height or ("machine" not in style and (height < 12 or many == 0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def rows(whole: dict[str, Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy for rows with any of the names of a whole one, and any values."""
    return st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(whole, JSON)), max_size=3)


@given(st.data())
@settings(max_examples=settings().max_examples // 2)
def test_any_response_is_drawn(data: st.DataObject) -> None:
    whole = overview()
    answered: dict[str, Any] = {name: data.draw(rows(whole[name][0])) for name in ("runs", "gpus", "alerts")}
    answered["host"] = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(whole["host"], JSON)))
    view = View()
    points = data.draw(st.lists(st.lists(JSON, max_size=5) | JSON, max_size=3) | JSON)
    odd = data.draw(st.lists(st.floats() | JSON, max_size=3) | JSON)
    series = [{"key": key, "points": points, "nonfinite": odd} for key in ("loss", "tokens")]
    asked = view.series_query(answered)
    panes = render_frame(DaemonData(answered, series, asked[0][1] if asked else ""), view, 80, 23)
    printed = "".join(to_text(line) for pane in panes for line in pane)
    assert "".join(one for one in printed if not one.isprintable()) == ""
    view = View(machine=True, order=data.draw(st.sampled_from(ORDERS)), filter=data.draw(st.sampled_from(["", "a"])))
    processes = data.draw(rows(process(1)))
    CpuShares().update(processes, 1.0)
    series = [{"key": "trackside_gpu_power_watts", "points": points}, *data.draw(rows({"key": 0, "points": 0}))]
    panes = render_frame(DaemonData(answered, machine=series, processes=processes), view, 80, 23)
    printed = "".join(to_text(line) for pane in panes for line in pane)
    assert "".join(one for one in printed if not one.isprintable()) == ""


@pytest.mark.parametrize("reported", ["nan", "inf", "-inf"])
def test_a_time_that_is_no_number_is_none(reported: str) -> None:
    lines = map(to_text, drawn(overview(runs=[run("net") | {"remaining_seconds": reported}])))
    assert any(re.search(r"^[> ] net +running +\d+ +- ", line) for line in lines)


def test_a_loss_that_is_no_number_is_spelt_as_everywhere() -> None:
    text = "\n".join(map(to_text, drawn(overview(runs=[run("net") | {"loss": "nan"}]))))
    assert re.search(r"\bNaN\b", text)
    assert "nan" not in text


@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 4), min_size=1, max_size=20))
def test_any_finite_numbers_are_a_curve(numbers: list[tuple[float, float, float, float]]) -> None:
    dots = [Point(step, *sorted(values)) for step, *values in numbers]
    lines = plot(PlottedCurve("loss", [Point(one.step, one.low, one.last, one.high) for one in dots]), 40, 8)
    assert {line_width(line) for line in lines} == {40}
    assert any(0x2800 < ord(letter) <= 0x28FF for line in lines for letter in to_text(line))


def test_a_curve_is_drawn_where_its_values_are() -> None:
    rising = [Point(step, step, step, step) for step in range(9)]
    lines = [to_text(line) for line in plot(PlottedCurve("loss 8", rising), 12, 5)]
    assert lines[0] == "loss 8"
    assert lines[1].startswith("8 ")
    assert lines[3].startswith("0 ")
    assert len(lines[1].rstrip()) == 12
    assert len(lines[3].rstrip()) < 8


def test_a_nonfinite_value_is_a_mark_and_not_a_height() -> None:
    points = [[step, BEGUN + step, 1.0, 2.0, 2.0] for step in range(1, 50)]
    curve = loss_curve(
        [{"key": "loss", "rank": 0, "points": [*points, [50, BEGUN + 50, "nan", "inf", "nan"]]}], run("a")
    )
    assert curve.title == "loss NaN  !1 not finite"
    assert curve.nonfinite_steps == [50]
    lines = plot(curve, 60, 6)
    assert lines[-1][-2] == ("!", "critical")
    assert to_text(lines[1]).startswith("2 ")


def test_a_nonfinite_value_within_a_bucket_is_marked_and_counted() -> None:
    points = [[step, BEGUN + step, 1.0, 2.0, 2.0] for step in range(10, 60, 10)]
    series = [{"key": "loss", "rank": 0, "points": points, "nonfinite": [0, 0, 7, 0, 1]}]
    curve = loss_curve(series, run("a", world_size=4))
    assert curve.title == "loss 2  rank 0 of 4  !8 not finite"
    assert curve.nonfinite_steps == [30, 50]
    lines = plot(curve, 60, 6)
    assert [piece for piece, ink in lines[-1] if ink == "critical"] == ["!", "!"]
    axis, columns = to_text(lines[-1]), 60 - 2
    assert axis.index("!") == 2 + round((columns - 1) / 2), "below the middle of the curve"


def test_throughput_is_reckoned_from_steps_and_times_across_attempts() -> None:
    series = [
        {"key": "tokens", "rank": 0, "points": [[0, 100.0, 64, 64, 64], [10, 105.0, 64, 64, 64]]},
        {"key": "tokens", "rank": 0, "points": [[5, 200.0, 64, 64, 64], [15, 201.0, 64, 64, 64]]},
    ]
    assert [(dot.step, dot.last) for dot in throughput_curve(series, run("a")).points] == [(10, 128.0), (15, 640.0)]
    many = run("a", world_size=4, tokens_per_second=2560.0)
    assert throughput_curve(series, many).title == "tokens/s 640  rank 0 of 4, all 2.56k"
    steps = [{"key": "train_loss", "points": [[0, 100.0, 1, 1, 1], [10, 105.0, 1, 1, 1]]}]
    assert throughput_curve(steps, run("a", world_size=4)).title == "steps/s 2"


def test_a_gpu_that_is_lost_and_one_that_is_held_back_are_words() -> None:
    for width in (80, 160):
        answered = overview(gpus=[gpu(0, up=False), gpu(1, limited=["hw_thermal"])])
        text = "\n".join(map(to_text, drawn(answered, width)))
        assert " 0 DOWN" in text
        assert "!hw_thermal" in text
    many = overview(gpus=[gpu(number, up=number < 60) for number in range(64)])
    assert "more, 4 down" in "\n".join(map(to_text, drawn(many)))


@pytest.mark.parametrize(("width", "columns"), [(82, 4), (81, 3), (61, 3), (60, 2), (40, 2), (39, 1)])
def test_as_many_columns_of_gpus_as_fit(width: int, columns: int) -> None:
    first, *_ = map(to_text, render_gpus([gpu(number) for number in range(100)], width, 4))
    assert first.count("%") == columns


def test_a_line_that_is_cut_off_ends_with_an_ellipsis() -> None:
    line: Line = [("a name  ", "dim"), ("that goes on", "")]
    assert [to_text(fit(line, width)) for width in (20, 19, 13, 8, 7, 6, 5, 1, 0)] == [
        *("a name  that goes on", "a name  that goes …", "a name  that…"),
        *("a name", "a name", "a name", "a na…", "…", ""),
    ]


def test_a_full_disk_is_named_first_and_with_a_sign() -> None:
    disks = [
        {"mountpoint": mountpoint, "size_bytes": 100, "avail_bytes": free}
        for mountpoint, free in (("/", 50), ("/a", 1), ("/b", 90))
    ]
    first = to_text(drawn(overview(host={"name": "gpu7", "disks": disks}))[0])
    assert "gpu7  /a 99 %!  / 50 %" in first
    assert "/b" not in first


def test_alerts_without_room_are_counted_and_silenced_ones_are_marked() -> None:
    answered = overview(
        alerts=[*(alert("critical", "NonFinite") for _ in range(30)), alert("warning", "Own", silenced=True)]
    )
    text = "\n".join(map(to_text, drawn(answered)))
    assert "ALERTS 30 critical, 1 warning" in text
    assert "more: trackside alerts --firing" in text
    assert "silenced Own" in "\n".join(map(to_text, drawn(answered, height=None)))


def test_values_that_were_not_measured_are_left_out() -> None:
    answered = overview(
        host={"name": "gpu7"}, gpus=[{"gpu": "0", "up": True}], runs=[{"id": "a", "name": "a"}], alerts=[]
    )
    text = "\n".join(map(to_text, drawn(answered)))
    assert "cpu" not in text
    assert "none firing" in text
    assert "nan" not in text.lower().replace("none", "")


def test_colours_are_the_terminal_s_own_and_end_with_the_text() -> None:
    line: Line = [("a", "critical"), ("b", "")]
    assert to_ansi(line) == "\x1b[1;31ma\x1b[0mb"


def test_a_window_narrows_moves_and_continues_with_the_newest_step() -> None:
    half = StepWindow().scaled(1000, 0.5)
    assert half.parameters(1000) == {"from": 500}
    assert half.parameters(1200) == {"from": 700}
    back = half.moved(1000, -0.5)
    assert back.parameters(5000) == {"from": 250, "to": 750}
    assert back.moved(1000, -9).parameters(1000) == {"from": 0, "to": 500}
    assert back.moved(1000, 0.5) == half
    assert half.scaled(1000, 2) == StepWindow()
    assert StepWindow().moved(1000, -0.5) == StepWindow()


def test_histories_rise_from_nothing_to_the_limit() -> None:
    series = [*machine(), {"key": 'trackside_gpu_utilization_ratio{gpu="0"}', "points": [[0, 1, 0, 0, 0, 0, 0.5]] * 2}]
    title, host, first, second = map(to_text, render_histories(series, overview(), 80, 4))
    assert title.split() == ["LAST", "5", "MINUTES", "UTILIZATION", "MEMORY", "POWER", "TEMPERATURE"]
    rising = "▁▂▃▃▄▅▆▆▇█"
    assert host.split() == ["host", rising, rising]
    assert first.split() == ["gpu", "0", "1.75GHz", "▅"], "one bucket of a time"
    assert second.split() == ["gpu", "1", "1.75GHz", rising, rising], "the chip's temperature, not the memory's"


def test_processes_are_a_tree_or_sorted_with_missing_values_last() -> None:
    on_gpu = {"gpu": "0", "memory_bytes": 5e9, "sm_utilization_ratio": 0.5}
    found = [
        process(10, gpus=[on_gpu, {"gpu": "1", "memory_bytes": 1e9}]),
        process(11, parent=10, role="dataloader", command="loader"),
        process(12, parent=10, user="bob", resident_bytes=2**31),
        process(13, parent=11, gpus=[on_gpu | {"memory_bytes": 9e9}], command="child"),
        process(14, parent=14, run=None, rank=None, role="gpu", user=None),
    ]
    assert [one["pid"] for one in ordered(found[:4], "tree")] == [10, 11, 13, 12]
    assert [one["depth"] for one in ordered(found[:4], "tree")] == [0, 1, 2, 1]
    pids = {order: [one["pid"] for one in ordered(found, order)] for order in ORDERS[1:]}
    assert pids["GPU MEM"] == [13, 10, 11, 12, 14]
    assert pids["USER"] == [10, 11, 13, 12, 14]
    assert pids["MEM"][0] == 12
    assert [one["pid"] for one in ordered(found, "GPU MEM", is_reversed=True)] == [10, 13, 11, 12, 14]
    text = "\n".join(map(to_text, drawn(overview(), 120, 40, machine=True, order="GPU MEM")))
    assert "▼GPU MEM" in text
    assert "▲CPU" in to_text(render_processes(found, 0, "CPU", (120, 9), is_reversed=True)[0])
    assert "> 2        ann" not in text


def test_the_share_of_a_cpu_is_that_between_two_readings() -> None:
    shares = CpuShares()
    for now, seconds, ratio in ((0.0, 5.0, None), (1.0, 6.0, None), (2.0, 8.0, 1.5), (3.0, 9.0, 1.5), (4.0, 9.0, 0.5)):
        found = [process(10, cpu_seconds=seconds), {"pid": 11}]
        shares.update(found, now)
        assert (found[0]["cpu_ratio"], found[1].get("cpu_ratio")) == (ratio, None)
