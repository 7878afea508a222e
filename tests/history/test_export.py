"""Exports: their lines, and that they come in small pieces."""

from __future__ import annotations

import csv
import json
import tracemalloc
from math import inf, isnan, nan
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, column, finished, history, ingested, opened
from history.builders import Bench, block, session_id

from trackside_daemon.history.files.export import FORMATS, GROUP, MAX_COLUMNS, PAGE, Format, TooManyKeysError, export
from trackside_daemon.history.files.selection import Selection, count
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.records import Alert, Event, MachineSample

if TYPE_CHECKING:
    from pathlib import Path

    from histories import History, Pushed

T = round(BEGIN * 1e6)


def csv_of(directory: Path, pushes: list[Pushed]) -> list[str]:
    with history(directory) as one:
        one.put([opened("a"), ingested("a", pushes)])
        return one.export("a", "csv").decode().splitlines()


def test_values_that_were_pushed_together_share_a_line_and_what_was_not_pushed_is_blank(tmp_path: Path) -> None:
    pushes: list[Pushed] = [
        (0, T, {"loss": 1.5, "lr": 0.1}),
        (1, T + 500_000, {"loss": 1.25}),
        (1, T + 600_001, {"eval": 2.0}),
    ]
    assert csv_of(tmp_path, pushes) == [
        "attempt,rank,step,time,loss,lr,eval",
        "0,0,0,1700000000.000000,1.5,0.1,",
        "0,0,1,1700000000.500000,1.25,,",
        "0,0,1,1700000000.600001,,,2.0",
    ]


def test_numbers_are_written_to_the_last_bit_and_what_is_no_number_by_name(tmp_path: Path) -> None:
    values = [0.1 + 0.2, -0.0, 1e300, 5e-324, nan, inf, -inf]
    lines = csv_of(tmp_path, [(step, T + step, {"x": value}) for step, value in enumerate(values)])
    assert [line.rpartition(",")[2] for line in lines[1:]] == [
        *("0.30000000000000004", "-0.0", "1e+300", "5e-324", "nan", "inf", "-inf"),
    ]


def test_two_values_of_one_key_at_one_step_and_time_are_two_lines(tmp_path: Path) -> None:
    lines = csv_of(tmp_path, [(3, T, {"x": 1.0, "y": 5.0}), (3, T, {"x": 2.0})])
    assert lines[1:] == ["0,0,3,1700000000.000000,1.0,5.0", "0,0,3,1700000000.000000,2.0,"]


def test_a_series_retains_its_order_even_where_its_times_go_back(tmp_path: Path) -> None:
    lines = csv_of(
        tmp_path, [(0, T + 9, {"x": 1.0}), (1, T, {"x": 2.0}), (2, T + 5, {"y": 3.0}), (3, T + 20, {"x": 4.0})]
    )
    x, y = ([line.split(",")[place] for line in lines[1:] if line.split(",")[place]] for place in (4, 5))
    assert (lines[0], x, y) == ("attempt,rank,step,time,y,x", ["3.0"], ["1.0", "2.0", "4.0"])


def test_ranks_and_attempts_follow_each_other_under_one_header(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        for attempt, rank in ((0, 0), (0, 1), (1, 0)):
            one.put([opened("a", attempt=attempt, rank=rank), column("a", ["x"], 2, attempt=attempt, rank=rank)])
        lines = one.export("a", "csv").decode().splitlines()
    assert [line.split(",")[:3] for line in lines] == [
        ["attempt", "rank", "step"],
        *(["0", "0", "0"], ["0", "0", "1"], ["0", "1", "0"], ["0", "1", "1"], ["1", "0", "0"], ["1", "0", "1"]),
    ]


def test_a_spreadsheet_formula_is_escaped_and_odd_keys_are_quoted(tmp_path: Path) -> None:
    keys = ["=cmd()", "+1", "-x", "@y", 'a"b', "c,d", "line\nbreak", "lone\rreturn", "Ü ключ 鍵"]
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", keys, 1)])
        text = one.export("a", "csv").decode()
    rows = list(csv.reader(text.splitlines(keepends=True)))
    assert rows[0] == ["attempt", "rank", "step", "time", *(f"'{key}" for key in keys[:4]), *keys[4:]]
    assert len(rows) == 2


def test_json_lines_have_the_run_first_then_its_pushes_then_what_happened(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put(
            [opened("a", name="näme", config={"lr": 0.1}, tags=("t",)), ingested("a", [(0, T, {"x": nan, "y": 1.0})])]
        )
        one.put([Event("a", 0, BEGIN + 1, "checkpoint", 0, 5, {"bytes": 7}), finished("a", cause="done")])
        one.put([Alert("Spike", "warning", BEGIN + 2, "a", {"key": "x"}, "s", "d", BEGIN + 3)])
        lines = [json.loads(line) for line in one.export("a", "jsonl").splitlines()]
    run, samples, event, alert = lines
    assert (run["kind"], run["id"], run["name"], run["state"], run["cause"]) == ("run", "a", "näme", "finished", "done")
    assert run["attempt_list"][0]["config"] == {"lr": 0.1}
    assert not {"metrics", "step", "loss"} & set(run)
    assert samples == {
        "kind": "samples",
        "attempt": 0,
        "rank": 0,
        "step": 0,
        "time": BEGIN,
        "values": {"x": "nan", "y": 1.0},
    }
    assert (event["kind"], event["event"], event["step"], event["time"]) == ("event", "checkpoint", 5, BEGIN + 1)
    assert (event["attempt"], event["rank"], event["fields"]) == (0, 0, {"bytes": 7})
    assert (alert["kind"], alert["alert"], alert["labels"], alert["ended"]) == (
        "alert",
        "Spike",
        {"key": "x"},
        BEGIN + 3,
    )


def test_json_is_one_document(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a"), ingested("a", [(0, T, {"x": 1.0, "y": -inf}), (1, T + 1, {"x": 2.0})])])
        found = json.loads(one.export("a", "json"))
        assert set(found) == {"run", "series", "events", "alerts", "captures"}
    assert found["series"] == [
        {"attempt": 0, "rank": 0, "key": "x", "points": [[0, BEGIN, 1.0], [1, BEGIN + 1e-6, 2.0]]},
        {"attempt": 0, "rank": 0, "key": "y", "points": [[0, BEGIN, "-inf"]]},
    ]


def test_a_run_without_samples_is_written_too(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a")])
        assert count(one.database, "a") == 0
        assert one.export("a", "csv") == b"attempt,rank,step,time\n"
        assert json.loads(one.export("a", "json"))["series"] == []
        assert len(one.export("a", "jsonl").splitlines()) == 1


def test_packed_or_not_an_export_is_the_same_and_as_long_as_its_count(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put(
            [
                opened("a"),
                column("a", ["x", "y"], 5000),
                ingested("a", [(5000, T + 6_000_000_000, {"y": 1.0})], number=2),
            ]
        )
        before = one.exports("a")
        one.put([finished("a")])
        while one.writer.call(lambda store: len(store.due)).result(60):
            pass
        with one.database.reading() as connection:
            assert connection.execute("SELECT count(*) FROM log").fetchone()[0] == 0
        assert one.exports("a")["csv"] == before["csv"]
        assert count(one.database, "a") == 10_001
    values = [value for row in csv.DictReader(before["csv"].decode().splitlines()) for value in (row["x"], row["y"])]
    assert len([value for value in values if value]) == 10_001


def test_a_run_of_very_many_keys_is_exported_some_keys_at_a_time(bench: Bench) -> None:
    bench.open(session_id(1))
    keys = [f"k{number}" for number in range(GROUP + 3)]
    bench.send(session_id(1), block(keys, [1, 2], [float(number) for number in range(2 * len(keys))]))
    bench.apply(*(Event("run", 0, BEGIN + number, f"e{number}") for number in range(PAGE + 3)))
    wanted = {(key, step): float(len(keys) * (step - 1) + number) for number, key in enumerate(keys) for step in (1, 2)}
    events = [f"e{number}" for number in range(PAGE + 3)]
    for packed in (False, True):
        if packed:
            bench.pack(bench.stream(session_id(1)))
            bench.send(session_id(1), block(["k3", "new"], [3], [1.0, 2.0]))
            wanted |= {("k3", 3): 1.0, ("new", 3): 2.0}
        document = json.loads(b"".join(export(bench.database, "run", "json")))
        found = {(one["key"], point[0]): point[2] for one in document["series"] for point in one["points"]}
        assert (found, [event["kind"] for event in document["events"]]) == (wanted, events)
        lines = [json.loads(line) for line in b"".join(export(bench.database, "run", "jsonl")).splitlines()]
        pushes = [line for line in lines if line["kind"] == "samples"]
        assert {(key, push["step"]): value for push in pushes for key, value in push["values"].items()} == wanted
        assert max(len(push["values"]) for push in pushes) == GROUP
        assert [line["event"] for line in lines if line["kind"] == "event"] == events


def test_more_keys_than_a_csv_file_has_columns_are_refused(bench: Bench) -> None:
    bench.open(session_id(1))
    keys = [f"k{number}" for number in range(MAX_COLUMNS + 1)]
    bench.send(session_id(1), block(keys, [1], [1.0] * len(keys)))
    with pytest.raises(TooManyKeysError, match=f"more than {MAX_COLUMNS} keys, too many for a CSV file; select keys"):
        export(bench.database, "run", "csv")
    assert b"0,0,1," in b"".join(export(bench.database, "run", "csv", Selection(("k0", "k1"))))


def test_an_unknown_run_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    with history(tmp_path) as one, pytest.raises(UnknownRunError):
        export(one.database, "a", "csv")


def test_a_long_run_takes_no_more_memory_than_some_blocks(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put(
            [
                opened("a"),
                *(column("a", ["x", "y", "z"], 10_000, number=number) for number in range(1, 6)),
                finished("a"),
            ]
        )
        while one.writer.call(lambda store: len(store.due)).result(60):
            pass
        tracemalloc.start()
        length = sum(map(len, export(one.database, "a", "jsonl")))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert length > 5_500_000
    assert peak < 3_000_000


def test_a_nan_in_a_configuration_is_a_text_in_the_export(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a", config={"clip": nan, "more": [inf, {"x": 1}]}), ingested("a", [(0, T, {"x": 1.0})])])
        found = json.loads(one.export("a", "json"), parse_constant=pytest.fail)
    assert found["run"]["attempt_list"][0]["config"] == {"clip": "nan", "more": ["inf", {"x": 1}]}
    assert not isnan(found["series"][0]["points"][0][2])


@pytest.mark.parametrize("form", FORMATS)
def test_the_log_is_not_read_anew_for_each_series(form: Format, bench: Bench, read_rows: list[int]) -> None:
    bench.open(session_id(1))
    for number in range(10):
        bench.send(session_id(1), block([f"k{key}" for key in range(40)], [number], [0.5] * 40))
    assert b"k39" in b"".join(export(bench.database, "run", form))
    assert len(read_rows) == 2 * 10, "to find its series, and to read them"


def part_of(one: History, part: Selection) -> list[tuple[str, str, str, str]]:
    """Return attempt, rank, step and key of each value in the CSV of a part; their number must equal the count."""
    text = b"".join(export(one.database, "a", "csv", part)).decode()
    found = [
        (row["attempt"], row["rank"], row["step"], key)
        for row in csv.DictReader(text.splitlines())
        for key, value in list(row.items())[4:]
        if value
    ]
    assert count(one.database, "a", part) == len(found)
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_a_part_is_keys_ranks_an_attempt_and_a_window(tmp_path: Path, *, packed: bool) -> None:
    with history(tmp_path) as one:
        for attempt, rank in ((0, 0), (0, 1), (1, 0)):
            one.put(
                [opened("a", attempt=attempt, rank=rank), column("a", ["x", "y"], 9000, attempt=attempt, rank=rank)]
            )
        if packed:
            one.put([finished("a"), finished("a", attempt=1)])
            one.wait_until_packed()
        edge = Selection(("y",), frozenset({1}), None, Window("step", 4095, 4097))
        assert part_of(one, edge) == [("0", "1", str(step), "y") for step in (4095, 4096, 4097)]
        assert len(part_of(one, Selection(attempt=1))) == 18_000
        assert len(part_of(one, Selection(window=Window("step", 8191)))) == 3 * 2 * 809
        assert part_of(one, Selection(window=Window("step", 9000))) == []
        whole = json.loads(b"".join(export(one.database, "a", "json", edge)))
        times = [time for _, time, _ in whole["series"][0]["points"]]
        timed = edge._replace(window=Window("time", times[1], times[2]))
        assert [step for _, _, step, _ in part_of(one, timed)] == ["4096", "4097"]
        assert [point[0] for point in whole["series"][0]["points"]] == [4095, 4096, 4097]
        lines = [json.loads(line) for line in b"".join(export(one.database, "a", "jsonl", timed)).splitlines()]
        assert [(line["step"], list(line["values"])) for line in lines[1:]] == [(4096, ["y"]), (4097, ["y"])]


def test_a_long_csv_has_a_line_for_each_value_with_labels_as_columns(tmp_path: Path) -> None:
    power = 'trackside_gpu_power_watts{gpu="0",uuid="G,1"}'
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["loss", "=x"], 2)])
        one.put([MachineSample(BEGIN + 0.5, {power: 300.0, "trackside_load1": 1.5}), finished("a")])
        text = b"".join(export(one.database, "a", "long", Selection(resources=True))).decode()
    assert text.splitlines() == [
        "time,metric,attempt,rank,step,gpu,uuid,value",
        "2023-11-14T22:13:20.000000Z,loss,0,0,0,,,0.0",
        "2023-11-14T22:13:20.000000Z,'=x,0,0,0,,,0.1",
        "2023-11-14T22:13:21.000000Z,loss,0,0,1,,,1.0",
        "2023-11-14T22:13:21.000000Z,'=x,0,0,1,,,1.1",
        '2023-11-14T22:13:20.500000Z,trackside_gpu_power_watts,,,,0,"G,1",300.0',
        "2023-11-14T22:13:20.500000Z,trackside_load1,,,,,,1.5",
    ]
