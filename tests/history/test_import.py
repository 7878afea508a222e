"""Imports: our formats restore every byte, other tools' files are read, and errors name the line."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, history, ingested, opened
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import ROOT, eventually

from trackside_daemon.history.capture_rows import captures
from trackside_daemon.history.files.export import FORMATS, export
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.importing import BATCH_BYTES, ImportingError, import_run
from trackside_daemon.history.files.items import FormatError
from trackside_daemon.history.files.jsonl import JsonLines
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.history.files.selection import Selection, count
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.resources import Resources, machine_stream
from trackside_daemon.history.read.series import Window
from trackside_daemon.history.record.run_changes import delete, pin
from trackside_daemon.model.capture import AlertLink, Capture, CaptureFile, ProfileOptions
from trackside_daemon.model.records import Alert, Event, MachineSample, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from histories import History

    from trackside_daemon.history.files.export import Format

WITH = Selection(resources=True)

DATA = ROOT.parent / "shared" / "data" / "dev"

HUGE = {"DEEP": "[" * 200_000, "LONG": "1" * 17_000_000}
DOCUMENT = (
    '{"run": {"id":"a","name":"a","attempt_list":[]},\n"series": [{"attempt":%s,"rank":%s,"key":%s,"points":[%s]}]}'
)
HEAD = '{"kind":"run","id":"a","name":"a","attempt_list":[{"attempt":0,"state":"failed","started":1,%s}]}\n%s\n'

keys = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
values = st.floats(allow_nan=True, allow_infinity=True)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=10)
words = st.sampled_from(["lr", "model", "note", "größe"])
configs = st.none() | st.dictionaries(
    words, st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text("ab é", max_size=5), max_size=3
)
steps = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50)
moments = st.integers(-(10**15), 7 * 10**15) | st.integers(0, 30).map(lambda late: round(BEGIN * 1e6) + late)
pushes = st.lists(
    st.tuples(steps, moments, st.dictionaries(keys, values, min_size=1, max_size=4)), min_size=1, max_size=12
)
ranks = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), pushes), min_size=1, max_size=4, unique_by=lambda rank: rank[:2]
)
states = st.sampled_from(["running", "stalled", "finished", "stopped", "failed", "lost"])
happened = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.integers(0, 3), st.sampled_from(["checkpoint", "été"]), configs),
    max_size=3,
)


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    """Draw the records of a run with everything that a run can have."""
    config, tags = draw(configs), tuple(draw(st.lists(texts, max_size=2)))
    records: list[Record] = []
    found = sorted(draw(ranks), key=lambda rank: rank[:2])
    for attempt, rank, pushed in found:
        started = BEGIN + 1000 * attempt + draw(st.floats(0, 100))
        records.append(
            opened("a", name="the run", attempt=attempt, rank=rank, world=4, config=config, tags=tags, started=started)
        )
        records.append(ingested("a", pushed, attempt=attempt, rank=rank))
    for attempt in sorted({attempt for attempt, _, _ in found}):
        if draw(st.booleans()):
            after = draw(st.floats(0, 1e6))
            records.append(finished("a", attempt=attempt, state=draw(states), cause=draw(texts), after=after))
    for attempt, one, kind, fields in draw(happened):
        records.append(Event("a", attempt, BEGIN + draw(st.floats(0, 9)), kind, one, one, fields or {}))
    for name in draw(st.lists(st.sampled_from(["Spike", "Stall"]), max_size=2, unique=True)):
        ended = draw(st.floats(0, 1e10))
        records.append(Alert(name, "warning", BEGIN, "a", {"key": name}, draw(texts), "it is so", ended))
    return records


@given(records=runs(), pinned=st.booleans())
@example(
    # The second attempt ends before it began, and after the first began.
    records=[
        opened("a", name="the run"),
        *(opened("a", name="the run", attempt=1, started=BEGIN + 1020), ingested("a", [(1, 0, {"x": 1.0})], attempt=1)),
        finished("a", attempt=1, after=10),
    ],
    pinned=False,
)
@settings(max_examples=settings().max_examples // 8)
def test_what_an_export_writes_comes_back_equal_in_all_three_forms(records: list[Record], pinned: bool) -> None:
    with tempfile.TemporaryDirectory() as place, history(Path(place, "first")) as first:
        first.put(records)
        first.writer.call(lambda store: pin(store, "a", pinned=pinned)).result(60)
        exports = first.exports("a")
        for form in FORMATS:
            with history(Path(place, form)) as other:
                imported = other.import_file(exports[form], f"a.{form}")
                assert imported.run == "a" or form == "csv"
                assert other.export(imported.run, form) == exports[form]
                if form != "csv":
                    assert other.exports("a") == exports


def test_the_last_result_of_each_key_counts_and_comes_back_from_an_export(tmp_path: Path) -> None:
    with history(tmp_path / "first") as first:
        first.put([opened("a"), Event("a", 0, BEGIN, "summary", 0, 1, {"best": 2.0, "worst": 9, "note": "x"})])
        first.put([Event("a", 0, BEGIN, "summary", 1, 2, {"best": 1.5, "worst": None}), finished("a")])
        first.put([Event("a", 0, BEGIN, "summary", 1, 2, {"long": "x" * 70_000})])
        assert description(first, "a")["summary"] == {"best": 1.5, "note": "x"}
        exports = first.exports("a")
        with first.database.reading() as connection:
            assert [len(event["fields"]) for event in reader.events(connection, "a")] == [1]  # what has no room
    for form in ("json", "jsonl"):
        with history(tmp_path / form) as other:
            other.import_file(exports[form], f"a.{form}")
            assert other.exports("a") == exports
            with other.database.reading() as connection:
                assert reader.runs(connection)[0]["summary"] == {"best": 1.5, "note": "x"}


def test_resources_of_the_time_of_a_run_come_back_and_stay_with_it(tmp_path: Path) -> None:
    own, other = (f'trackside_dataloader_workers{{rank="0",run="{run}"}}' for run in ("a", "b"))
    with history(tmp_path / "first") as first:
        first.put([opened("a"), column("a", ["loss"], 3), finished("a", after=60)])
        for second in range(-30, 90, 5):
            power = {'trackside_gpu_power_watts{gpu="0"}': 100.0 + second, own: 4.0, other: 8.0}
            late = {"trackside_host_load1": nan} if second > 20 else {}
            first.put([MachineSample(BEGIN + second + 0.123456, {**power, **late})])
        first.wait_until_packed()
        exports = {form: b"".join(export(first.database, "a", form, WITH)) for form in FORMATS}
        assert count(first.database, "a", WITH) == 3 + 2 * 12 + 7
    for form in FORMATS:
        with history(tmp_path / form) as second_history:
            second_history.put([MachineSample(BEGIN + 1, {"trackside_host_load1": 9.0})])  # of another machine
            imported = second_history.import_file(exports[form], f"a.{form}")
            second_history.wait_until_packed()
            assert imported.samples == 34
            assert b"".join(export(second_history.database, imported.run, form, WITH)) == exports[form]
            with second_history.database.reading() as connection:
                window = Window("time", BEGIN, BEGIN + 60)
                stream = machine_stream(connection, imported.run)
                (power_,) = Resources(connection, window, 100, stream=stream).of("trackside_gpu_power_watts")
                assert (len(power_.points), power_.points[0]) == (12, (BEGIN + 0.123456, 100.0))
            second_history.writer.call(partial(delete, uid=imported.run)).result(60)
            eventually(partial(only_the_host_is_left, second_history))


def only_the_host_is_left(one: History) -> bool:
    with one.database.reading() as connection:
        streams: list[tuple[int, int]] = connection.execute("SELECT id, run FROM stream").fetchall()
    return streams == [(0, 0)]


def test_an_imported_run_without_resources_has_none(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([MachineSample(BEGIN + 1, {"trackside_host_load1": 9.0})])
        one.import_file(b"step,time,loss\n0,%d,1\n1,%d,1\n" % (BEGIN, BEGIN + 2), id="a")
        with one.database.reading() as connection:
            assert machine_stream(connection, "a") is None
            assert list(reader.series(connection, "a", ["trackside_host_load1"])) == []


def test_resources_without_a_run_are_refused(tmp_path: Path) -> None:
    with history(tmp_path) as one, pytest.raises(FormatError, match="it begins with resources"):
        one.import_file(b'{"kind":"resources","time":1,"values":{"x":1}}\n', "run.jsonl")


def table(one: History, run: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(one.export(run, "csv").decode())))


def imported_rows(
    place: Path, data: str | bytes, file: str = "run.csv", **options: Any
) -> tuple[list[list[str]], list[str]]:
    with history(place) as one:
        imported = one.import_file(data.encode() if isinstance(data, str) else data, file, **options)
        return table(one, imported.run), imported.notes


def description(one: History, run: str) -> dict[str, Any]:
    with one.database.reading() as connection:
        return reader.run(connection, run)


def test_csv_with_a_row_for_each_value_is_read(tmp_path: Path) -> None:
    data = "metric.name,metric.context.subset,idx,step,value,time\nloss,train,0,1,2.5,5\nacc,val,0,1,0.5,6\nloss,train,1,2,2,7\n"
    with history(tmp_path) as one:
        run = one.import_file(data.encode()).run
        found = {metric["key"]: (metric["count"], metric["last"]) for metric in description(one, run)["metrics"]}
    assert found == {"loss": (2, 2.0), "acc": (1, 0.5)}


def test_wide_csv_with_blanks_is_imported(tmp_path: Path) -> None:
    rows, notes = imported_rows(
        tmp_path, "step,time,loss,lr\n0,1700000000.5,2.5,\n1,1700000001.25,nan,0.1\n2,1700000002,,\n"
    )
    assert rows == [
        ["attempt", "rank", "step", "time", "loss", "lr"],
        ["0", "0", "0", "1700000000.500000", "2.5", ""],
        ["0", "0", "1", "1700000001.250000", "nan", "0.1"],
    ]
    assert notes == []


@pytest.mark.parametrize(
    ("text", "file", "columns"),
    [
        ("Wall time,Step,Value\n1700000000.5,3,0.25\n", "train-tag-loss.csv", {"step": "3", "loss": "0.25"}),
        ("Wall time,Step,Value\n1700000000.5,3,0.25\n", "loss.csv", {"step": "3", "loss": "0.25"}),
        ("Step,run - loss\r\n3,0.25\r\n", "x.csv", {"step": "3", "run - loss": "0.25"}),
        (
            "_runtime,_timestamp,loss,acc,_step\n7,1700000000.5,0.25,,3\n",
            "x.csv",
            {"step": "3", "loss": "0.25", "_runtime": "7.0"},
        ),
        (
            ",STEP,Time,loss\n0,3.0,1700000000.5,0.25\n",
            "x.csv",
            {"step": "3", "time": "1700000000.500000", "loss": "0.25"},
        ),
        ("\ufeffstep,loss\n3, 0.25\n", "x.csv", {"step": "3", "loss": "0.25"}),
        (
            '{"_step": 3, "_timestamp": 1700000000.5, "loss": 0.25, "who": "me"}\n',
            "x.jsonl",
            {"step": "3", "loss": "0.25"},
        ),
        ('{"step": 3, "loss": NaN}', "x.jsonl", {"step": "3", "loss": "nan"}),
        (
            '{"attempt":0,"rank":0,"step":3,"time":1700000000.5,"values":{"loss":"-inf"}}\n',
            "x",
            {"step": "3", "loss": "-inf"},
        ),
    ],
)
def test_other_tools_files_are_imported(tmp_path: Path, text: str, file: str, columns: dict[str, str]) -> None:
    rows, _ = imported_rows(tmp_path, text, file)
    assert len(rows) == 2
    found = dict(zip(rows[0], rows[1], strict=True))
    assert columns.items() <= found.items()


def test_lines_without_a_time_are_a_second_apart_with_a_note(tmp_path: Path) -> None:
    rows, notes = imported_rows(tmp_path, "step,time,loss\n5,,1\n6,,2\n9,,3\n", begin=1000.0)
    assert [row[3] for row in rows[1:]] == ["1000.000000", "1001.000000", "1002.000000"]
    assert notes == ["3 lines have no time: each is dated a second after the one before, the first at Unix time 1000"]


def test_a_run_of_another_tool_is_named_by_its_file_and_begins_and_ends_with_its_samples(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        run = one.import_file(b"step,time,x\n0,50,1\n1,40,2\n2,70,3\n", "some/run one.csv").run
        found = description(one, run)
    assert re.fullmatch("[0-9a-f]{12}", run)
    assert (found["name"], found["started"], found["ended"]) == ("run one", 40.0, 70.0)
    assert (found["state"], found["cause"]) == ("finished", "imported from run one.csv")


def test_an_id_and_a_name_may_be_given(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        assert one.import_file(b"step,x\n0,1\n", id="new", name="shown").run == "new"
        assert description(one, "new")["name"] == "shown"


def test_what_storage_jsonl_has_written_comes_back(tmp_path: Path) -> None:
    records: list[Record] = [
        opened("a"),
        ingested("a", [(0, 10**15, {"x": nan, "y": 0.1}), (1, 10**15 + 1, {"x": 1.0})]),
        column("a", ["z"], 700, number=2),
    ]
    lines = JsonLines(tmp_path / "lines")
    lines.write(records)
    lines.close()
    with history(tmp_path / "first") as first, history(tmp_path / "second") as second:
        first.put(records)
        imported = second.import_file((tmp_path / "lines" / "a" / "samples.jsonl").read_bytes(), "a.jsonl")
        assert second.export(imported.run, "csv") == first.export("a", "csv")


def test_a_run_that_is_there_is_refused_with_the_way_out_and_stays_as_it_was(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 3)])
        before = one.exports("a")
        for _ in range(2):
            with pytest.raises(ImportingError, match=r"^a.jsonl: run 'a' \(a\) is in the history already; .*--id NEW$"):
                one.import_file(before["jsonl"], "a.jsonl")
        assert one.exports("a") == before
        assert one.import_file(before["jsonl"], "a.jsonl", id="b").samples == 3


@pytest.mark.parametrize(("ends", "ended"), [('"ended":7.5', 7.5), ('"cause":""', 3.0)])
def test_an_alert_that_had_not_ended_ends_with_its_attempt_or_the_last_sample(
    tmp_path: Path, ends: str, ended: float
) -> None:
    alerts = '{"kind":"alert","alert":"NonFinite","severity":"critical","started":%s}\n'
    samples = '{"attempt":0,"rank":0,"step":1,"time":3.0,"x":1}\n'
    with history(tmp_path) as one:
        one.import_file((HEAD % (ends, alerts % 2.0 + alerts % 9.0 + samples)).encode(), "a.jsonl")
        with one.database.reading() as connection:
            assert [alert["ended"] for alert in alert_reader.alerts(connection, alert_reader.AlertFilter("a"))] == [
                ended,
                9.0,
            ]
            assert alert_reader.firing(connection, 10.0) == []


def test_a_run_that_was_deleted_can_be_imported_again(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.import_file(b"step,x\n0,1\n1,2\n", "a.csv", id="a", begin=5.0)
        before = one.exports("a")
        assert one.writer.call(lambda store: delete(store, "a")).result(60)
        one.import_file(b"step,x\n0,1\n1,2\n", "a.csv", id="a", begin=5.0)
        assert one.exports("a") == before


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        ("", "a.csv", "a.csv: empty; a CSV, JSON or JSON lines file of a run is expected"),
        ("step,x\n", "a.csv", "a.csv: nothing to import: there are no samples in it"),
        ("epoch,x\n1,2\n", "a.csv", "a.csv: line 1: a header with a column 'step', and then one column per key, is expected"),
        ("step,x\n1.5,1\n", "a.csv", "a.csv: line 2: a whole number is expected as step, not '1.5'"),
        ("step,x\n99999999999999999999,1\n", "a.csv", "a.csv: line 2: a whole number is expected as step"),
        ("step,x\ninf,1\n", "a.csv", "a.csv: line 2: a whole number is expected as step, not 'inf'"),
        ("step,time,x\n0,yesterday,1\n", "a.csv", "a.csv: line 2: a time in Unix seconds is expected, not 'yesterday'"),
        ("step,time,x\n0,1700000000000,1\n", "a.csv", "a.csv: line 2: a time in Unix seconds is expected, not 1700000000000.0"),
        ("step,x,x\n0,1,2\n", "a.csv", "a.csv: line 1: each column name is expected once, but 'x' occurs again"),
        ("attempt,rank,step,time,x\n0,-1,0,0,1\n", "a.csv", "a.csv: line 2: a whole number is expected as rank, not '-1'"),
        ('{"step":0,"values":{"x":"much"}}\n', "a.jsonl", 'a.jsonl: line 1: a number, or one of "nan", "inf" and "-inf"'),
        ('{"kind":"run","id":"a"}\n', "a.jsonl", "a.jsonl: line 1: the run's data are invalid: Object missing required field `name`"),
        ('{"kind":"event","event":"x","time":"soon"}\n', "a.jsonl", "a.jsonl: line 1: the run's data are invalid: "),
        ('{"run": {"id":"a","name":"a","attempt_list":[]},\n"series": [', "a.json", "a.json: line 2: "),
        (DOCUMENT % ("0", "0", '"x"', "DEEP"), "a.json", "a.json: line 2: nested too deeply"),
        (DOCUMENT % ("0", "0", '"x"', f"[0,0,1{'0' * 5000}]"), "a.json", "a.json: line 2: "),
        ('{"run": {"id":"a","name":"a","attempt_list":[]},\n"x": [1, oops]}', "a.json", "a.json: line 2: JSON is expected: "),
        ('{"step":0,"\\ud800":1}\n', "a.jsonl", "a.jsonl: line 1: a key that is text is expected, not '\\ud800'"),
        ('{"step":0,"values":{"\\udfff":1}}\n', "a.jsonl", "a.jsonl: line 1: "),
        (DOCUMENT % ("0", "0", '"\\ud800"', "[0,0,1]"), "a.json", "a.json: line 2: a key that is text is expected"),
        (DOCUMENT % ("0", '"x"', '"x"', "[0,0,1]"), "a.json", "a.json: line 2: attempt 0, rank 'x', step 0 are expected"),
        (DOCUMENT % (2**63, "0", '"x"', "[0,0,1]"), "a.json", f"a.json: line 2: attempt {2**63}, rank 0"),
        (DOCUMENT % ("0", "0", '"x"', f"[{2**63},0,1]"), "a.json", f"a.json: line 2: attempt 0, rank 0, step {2**63}"),
        (DOCUMENT % ("0", "0", '"x"', f"[0,0,1{'0' * 400}]"), "a.json", "a.json: line 2: "),
        ('{"step":0,"rank":"x","values":{"x":1}}\n', "a.jsonl", "a.jsonl: line 1: Expected `int | null`, got `str`"),
        (f'{{"step":{2**63},"values":{{"x":1}}}}\n', "a.jsonl", "a.jsonl: line 1: "),
        ('{"kind":[]}\n', "a.jsonl", "a.jsonl: line 1: "),
        (HEAD % ('"rank":"x"', ""), "a.jsonl", "a.jsonl: line 1: the run's data are invalid: Expected `int`, got `str` - at `$.rank`"),
        (HEAD % (f'"rank":{2**63}', ""), "a.jsonl", "a.jsonl: line 1: the run's data are invalid: "),
        (HEAD % ('"ended":1e300', ""), "a.jsonl", "a.jsonl: line 1: the run's data are invalid: "),
        ("step,x\n0,LONG\n", "a.csv", "a.csv: line 2: longer than 16 MiB"),
        (DOCUMENT % ("0", "0", '"LONGLONG"', ""), "a.json", "a.json: line 2: a value longer than 16 MiB"),
        (b"\xef", "a.csv", "a.csv: line 0: a header with a column 'step'"),  # the beginning of a byte order mark
        ("[1, 2]", "a.json", "a.json: line 1: a header with a column 'step'"),
        ("step,x\n0,one\n1,two\n", "a.csv", "a.csv: line 2: a number is expected for 'x', not 'one'"),
        (b'{"run": {},\n"x": "\xff"}', "a.json", "a.json: line 1: the run's data are invalid: "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_reported_in_a_line_and_leaves_nothing(
    tmp_path: Path, text: str | bytes, file: str, message: str
) -> None:
    for name, huge in HUGE.items():
        text = text.replace(name, huge) if isinstance(text, str) else text
    with history(tmp_path) as one:
        with pytest.raises(FormatError) as caught:
            one.import_file(text.encode() if isinstance(text, str) else text, file)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)
        with one.database.reading() as connection:
            assert reader.runs(connection) == []


def test_half_a_surrogate_pair_in_the_facts_of_a_run_becomes_a_question_mark(tmp_path: Path) -> None:
    head = HEAD % ('"cause":"\\ud800","config":{"\\udfff":1}', '{"step":0,"values":{"x":1}}')
    with history(tmp_path) as one:
        one.import_file(head.replace('"id":"a"', '"id":"\\ud800"').encode(), "a.jsonl")
        (attempt,) = description(one, "?")["attempt_list"]
    assert (attempt["cause"], attempt["config"]) == ("?", {"?": 1})


OURS = '{"kind":"run","id":"a","name":"a","attempt_list":[{"attempt":0,"state":"failed","started":1}]}\n'
SAMPLES = "".join(f'{{"kind":"samples","step":{step},"time":{step},"values":{{"x":{step}}}}}\n' for step in range(4))
SERIES = '\n{"attempt":0,"rank":0,"key":"x","points":[[0,0,0],[1,1,1],[2,2,2],[3,3,3]]}'
WHOLE = (
    '{"run": {"id":"a","name":"a","attempt_list":[]},\n"series": ['
    + SERIES
    + "],\n"
    + '"events": [\n%s],\n"alerts": []}'
)
EVENT = '{"attempt":0,"kind":"e","time":1}'


@pytest.mark.parametrize(
    ("text", "file", "steps", "notes"),
    [
        ("step,x\n0,1\n1,two\n2,3\n", "a.csv", "0 2", ["1 non-numeric value: x"]),
        ("step,x\n0,1\nsoon,1\n2,3\n", "a.csv", "0 2", ["1 damaged line: line 3"]),
        ("step,x\n0,1\n1,2,3\n2,3\n3\n", "a.csv", "0 2", ["2 damaged lines: line 3, line 5"]),
        ("step,x\n0,1\n1,2\n2", "a.csv", "0 1", ["1 incomplete last line: line 4"]),
        ("step,x\n0,1\n1,2\n2,3", "a.csv", "0 1 2", []),
        ("step,x\n0,1\n\n,\n2,3\n", "a.csv", "0 2", []),
        (b"step,x\n0,1\n1,\xff\n2,3\n", "a.csv", "0 2", ["1 non-numeric value: x"]),
        ('step,x,n\n0,1,"a\nb"\n1,2,"c""d"\n', "a.csv", "0 1", ["2 non-numeric values: n"]),
        ('step,x,n\n0,1,"a\n1,2,b\n2,3,c\n', "a.csv", "0 1 2", ["3 non-numeric values: n"]),
        ('step,x\n0,"1\n1,2\n2,3\n', "a.csv", "0 1 2", []),
        ("step,x\n0,1\n1,LONG\n2,3\n", "a.csv", "0 2", ["1 damaged line: line 3"]),
        ('{"step":0,"x":1}\n{"step":"no","x":1}\n{"step":2,"x":1}\n', "a.jsonl", "0 2", ["1 damaged line: line 2"]),
        ('{"step":0,"x":1}\n{"step":1,"x":{"step":2,"x":1}\n', "a.jsonl", "0 2", ["1 damaged line: line 2"]),
        (b'{"step":0,"x":1}\n{"step":1,"\xfc":"\xff","x":2}\n', "a.jsonl", "0 1", ["1 non-numeric value: \ufffd"]),
        ('{"step":0,"x":1}\n{"step":1,"x":2}\n{"step":2,"x', "a.jsonl", "0 1", ["1 incomplete last line: line 3"]),
        ('{"step":0,"time":1,"x":1,"who":"me","nested":{}}\n', "a.jsonl", "0", ["2 non-numeric values: who, nested"]),
        ('{"step":0,"x":1}\n{"a":DEEP', "a.jsonl", "0", ["1 damaged line: line 2"]),
        ('{"step":0,"x":1}\n{"step":1,"x":"LONG"}\n{"step":2,"x":1}', "a.jsonl", "0 2", ["1 damaged line: line 2"]),
        (OURS + SAMPLES.replace('"step":2', '"step"2'), "a.jsonl", "0 1 3", ["1 damaged line: line 4"]),
        ("x" + OURS + SAMPLES, "a.jsonl", "", None),
        (OURS.replace('"name"', '"nane"') + SAMPLES, "a.jsonl", "0 1 2 3", ["1 damaged line: line 1"]),
        (OURS + SAMPLES + '{"kind":"event","event":"e","attempt":0,"time":NaN}\n', "a.jsonl", "0 1 2 3", ["1 damaged line: line 6"]),
        (OURS + SAMPLES + '{"kind":"layers","of":1,"layers":{"a":{}},"step":1,"time":1}', "a.jsonl", "0 1 2 3", ["1 damaged line: line 6"]),
        (WHOLE % EVENT, "a.json", "0 1 2 3", []),
        (WHOLE.replace("[1,1,1]", '["1",1,1]') % EVENT, "a.json", "0 2 3", ["1 damaged sample: line 3"]),
        (WHOLE.replace("[1,1,1]", "[1,1x1]") % EVENT, "a.json", "0 2 3", ["1 damaged part of 7 bytes: line 3"]),
        (WHOLE.replace('"key"', "'key\"") % EVENT, "a.json", "", None),
        (WHOLE % (EVENT + ",\n{e}"), "a.json", "0 1 2 3", ["1 damaged part of 5 bytes: line 6"]),
        (WHOLE % (EVENT.replace("1", '"now"') + ",\n" + EVENT), "a.json", "0 1 2 3", ["1 damaged line: line 5"]),
        ((WHOLE % EVENT).partition(",2,2]")[0], "a.json", "0 1", ["1 damaged part of 1 byte: line 3"]),
    ],
)  # fmt: skip
def test_a_damaged_line_costs_itself_and_is_reported(
    tmp_path: Path, text: str | bytes, file: str, steps: str, notes: list[str] | None
) -> None:
    for name, huge in HUGE.items():
        text = text.replace(name, huge) if isinstance(text, str) else text
    if notes is None:
        with pytest.raises(FormatError):
            imported_rows(tmp_path, text, file)
        return
    rows, answered = imported_rows(tmp_path, text, file)
    assert [row[2] for row in rows[1:]] == steps.split()
    assert [line.removeprefix("left out: ") for line in answered if "no time" not in line] == notes


def test_booleans_are_numbers_and_a_column_of_text_is_left_out(tmp_path: Path) -> None:
    text = "step,time,stage,ok,loss\n0,1,fit,True,0.5\n1,2,fit,false,0.4\n"
    rows, notes = imported_rows(tmp_path, text)
    assert rows == [
        ["attempt", "rank", "step", "time", "ok", "loss"],
        ["0", "0", "0", "1.000000", "1.0", "0.5"],
        ["0", "0", "1", "2.000000", "0.0", "0.4"],
    ]
    assert notes == ["left out: 2 non-numeric values: stage"]


def test_what_follows_a_header_in_the_middle_is_the_next_attempt(tmp_path: Path) -> None:
    text = "step,time,loss\n0,1,0.5\n1,2,0.4\nstep,time,acc,loss\n1,5,0.5,0.41\n2,6,,0.3\n"
    rows, notes = imported_rows(tmp_path, text)
    assert [row[:3] for row in rows[1:]] == [["0", "0", "0"], ["0", "0", "1"], ["1", "0", "1"], ["1", "0", "2"]]
    assert notes == ["left out: 1 repeated header, with the next attempt after each: line 4"]
    rows, notes = imported_rows(tmp_path / "same", "step,time,loss\n0,1,0.5\nstep,time,loss\n0,5,0.41\n")
    assert [row[:3] for row in rows[1:]] == [["0", "0", "0"], ["1", "0", "0"]]
    assert len(notes) == 1


def test_an_error_far_down_removes_what_was_written_before_it(tmp_path: Path) -> None:
    values = ",".join(f'"k{number}":1' for number in range(BATCH_BYTES // 8 // 500))
    rows = "".join(f'{{"step":{step},"time":1,{values}}}\n' for step in range(510))
    with history(tmp_path) as one:
        with pytest.raises(FormatError, match="line 512: a second run begins"):
            one.import_file(f"{OURS}{rows}{OURS}".encode(), "a.jsonl")
        with one.database.reading() as connection:
            assert reader.runs(connection) == []
        assert one.import_file(b"step,x\n0,1\n").samples == 1


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_captures_come_along_without_their_files(tmp_path: Path, form: Format) -> None:
    cause = AlertLink("SlowStep", 3.0, {"run": "train"})
    options = ProfileOptions(None, 1.0, stacks=True)
    made = Capture(
        "0" * 12, "a", 0, "profile", "alert", 5.0, (1, 3), options, "summarised", cause=cause, step=7, ended=6.0
    )
    reference = replace(made, id="1" * 12, cause=None, asked=4.0, summary={"ranks": {}})
    made = replace(made, files=(CaptureFile(1, "a.gz", 9, "trace"),), summary={"ranks": {}, "reference": reference.id})
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 3), finished("a"), reference, made])
        one.import_file(one.export("a", form), f"a.{form}", id="b")
        with one.database.reading() as connection:
            first, second = captures(connection, "b")
            assert len(captures(connection, "a")) == 2
    assert (first.id != reference.id, second.summary["reference"]) == (True, first.id)
    moved = "its files stayed where it was recorded"
    assert second == replace(made, id=second.id, run="b", files=(), reason=moved, summary=second.summary)


def test_a_capture_that_is_none_is_left_out(tmp_path: Path) -> None:
    for number, capture in enumerate(("5", '{"id": "x"}', '{"id": "x", "kind": "film", "trigger": "api", "asked": 1}')):
        lines = f'{{"step":0,"time":1,"x":{number}}}\n{{"kind":"capture","capture":{capture}}}\n'
        _, notes = imported_rows(tmp_path, lines, "a.jsonl")
        assert notes == ["left out: 1 damaged line: line 2"]


def test_a_json_document_may_be_laid_out_in_any_way(tmp_path: Path) -> None:
    with history(tmp_path / "1") as first, history(tmp_path / "2") as second:
        first.put([opened("a"), column("a", ["x", "y"], 3000), finished("a")])
        document = json.loads(first.export("a", "json"))
        turned = {name: document[name] for name in ("run", "captures", "alerts", "series", "events")}
        second.import_file(json.dumps(turned, indent=3).encode(), "a.json")
        assert second.exports("a") == first.exports("a")


def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.writer.call(lambda store: store.connection.execute("DROP TABLE event")).result(60)
        with pytest.raises(ImportingError, match=r"^a.jsonl: the history cannot be written: no such table"):
            one.import_file(b'{"step":0,"x":1}\n{"kind":"event","event":"e","attempt":0,"time":1}\n', "a.jsonl")


def test_real_training_logs_come_back_as_they_are(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    if not DATA.exists():
        pytest.skip(f"there is no {DATA}")
    folders = sorted(folder for folder in DATA.iterdir() if folder.is_dir())
    files = [path for folder in folders for path in sorted(folder.glob("*.csv"))[:1]]
    with history(tmp_path) as one:
        for file in files[: count(3, len(files))]:
            with file.open("rb") as stream:
                imported = import_run(one.writer, open_run_file(stream, str(file), begin=BEGIN))
            header, *rows = table(one, imported.run)
            keys, *raw = csv.reader(io.StringIO(file.read_text()))
            kept = [row for row in raw if any(row[2:])]
            assert len(rows) == len(kept)
            assert set(header[4:]) == {keys[place] for row in kept for place in range(2, len(keys)) if row[place]}
            assert imported.samples == sum(bool(cell) for row in kept for cell in row[2:])


def test_infinities_and_nan_are_data(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        run = one.import_file(b"step,x\n0,NaN\n1,Infinity\n2,-inf\n").run
        assert [row[4] for row in table(one, run)[1:]] == [repr(nan), repr(inf), repr(-inf)]


def test_a_run_is_invisible_before_it_is_whole_and_what_was_cut_off_goes(tmp_path: Path) -> None:
    wide = BATCH_BYTES // 8 // 500  # so that there is a batch after 500 lines
    data = b"step,time," + b",".join(b"k%d" % number for number in range(wide)) + b"\n"
    data += b"".join(b"%d,1700000000%s\n" % (step, b",1.5" * wide) for step in range(1100))
    with history(tmp_path) as one:
        seen: list[int] = []
        original = one.writer.call

        def call(work: Any) -> Any:
            future = original(work)
            future.result(60)
            with one.database.reading() as connection:
                seen.append(len(reader.runs(connection)))
            return future

        one.writer.call = call  # type: ignore[method-assign]
        accepted = one.import_file(data, "run.csv")
        assert len(seen) > 2
        assert set(seen[:-1]) == {0}
        assert seen[-1] == 1
        original(lambda store: store.connection.execute("UPDATE run SET deleted = 2")).result(60)  # as a kill leaves it
    with history(tmp_path) as again:
        assert again.import_file(data, "run.csv").run == accepted.run
        with again.database.reading() as connection:
            assert len(reader.runs(connection)) == 1


def test_files_of_one_name_are_runs_of_their_own_and_the_same_file_is_one(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        first = one.import_file(b"step,loss\n1,2.0\n", "a/progress.csv")
        second = one.import_file(b"step,loss\n1,3.0\n", "b/progress.csv")
        assert first.run != second.run
        with pytest.raises(ImportingError, match="in the history already"):
            one.import_file(b"step,loss\n1,2.0\n", "c/progress.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0\xc0\x8e)\xd4\xd9A\x1a\rbrain.Event:2',
            "an event file of TensorBoard, which only the command reads: trackside import PATH",
        ),
        (
            b":W&B\xee\xbe\0\x12\x34\x56\x78\xff",
            "a log of W&B, which only the command reads: trackside import PATH",
        ),
    ],
)
def test_a_binary_file_of_another_tool_is_named_with_what_reads_it(content: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        list(parse(io.BytesIO(content), "run-1", 0.0, LeftOut()))
    assert str(caught.value).startswith(f"run-1: {message}")
