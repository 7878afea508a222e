"""The rows that each record leaves in the tables."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest
from history.builders import SHIFT, WALL, bits, block, check_tables, opened, session_id
from session_records import batch_ingested

from trackside.redact import REDACTED
from trackside.wire import ProcessInfo
from trackside_daemon.history.read import alert_reader, attempts, reader
from trackside_daemon.history.sanitize import clean
from trackside_daemon.model.records import Alert, AlertNote, BatchIngested, Event, MachineSample, Notified, RunState

if TYPE_CHECKING:
    from history.builders import Bench

ONE, TWO = session_id(1), session_id(2)


def shown(bench: Bench, run: str = "run") -> dict[str, Any]:
    """Return the description of a run."""
    with bench.database.reading() as connection:
        return reader.run(connection, run)


def rows(bench: Bench, query: str) -> list[Any]:
    """Return the rows that a query finds."""
    return bench.connection.execute(query).fetchall()


def ingested(number: int, *values: float, session: bytes = ONE) -> BatchIngested:
    """Return the record of a batch of losses."""
    return batch_ingested(session, number, [block(["loss"], range(number, number + len(values)), values)], SHIFT)


def test_a_message_again_adds_nothing(bench: Bench) -> None:
    bench.open(ONE)
    for number in (1, 1, 2, 1, 2, 3):
        bench.apply(ingested(number, float(number)))
    bench.reopen()
    for number in (3, 2, 4, 4):
        bench.apply(ingested(number, float(number)))
    bench.pack(1)
    bench.apply(ingested(4, 4.0))
    assert [row[2] for row in bench.read(1, "loss")] == [1.0, 2.0, 3.0, 4.0]


def test_a_message_that_comes_again_after_another_hello_in_one_transaction_adds_nothing(bench: Bench) -> None:
    bench.open(ONE)
    bench.apply(ingested(1, 1.0), ingested(2, 2.0), opened(ONE, acked=1), ingested(2, 2.0), ingested(3, 3.0))
    assert [row[2] for row in bench.read(1, "loss")] == [1.0, 2.0, 3.0]


def test_a_message_of_a_transaction_that_failed_comes_again_once(bench: Bench) -> None:
    bench.open(ONE)
    bench.apply(ingested(1, 1.0))
    for _ in range(2):
        bench.connection.execute("BEGIN")
        bench.store.apply(ingested(2, 2.0))
        bench.store.write_progress()
        bench.connection.execute("ROLLBACK")
        bench.store.reset()
    bench.apply(ingested(2, 2.0), ingested(3, 3.0))
    assert [row[2] for row in bench.read(1, "loss")] == [1.0, 2.0, 3.0]


def test_seconds_by_phase_are_the_newest_of_each_session_summed(bench: Bench) -> None:
    bench.open(ONE)
    bench.apply(ingested(1, 1.0))
    assert "phases" not in shown(bench)["attempt_list"][0]
    for number, seconds in ((2, 1.0), (3, 4.0), (3, 2.0)):
        bench.apply(replace(ingested(number, 1.0), phases={"forward": seconds, "x" * 513: 1.0}))
    bench.apply(batch_ingested(ONE, 4))
    bench.apply(batch_ingested(ONE, 5, phases={"forward": 4.0, "eval": 9.0}))
    bench.reopen()
    bench.apply(opened(TWO))
    bench.apply(replace(ingested(1, 1.0, session=TWO), phases={"forward": 0.5, "data": 0.25}))
    bench.apply(opened(session_id(3), rank=1))
    bench.apply(replace(ingested(1, 1.0, session=session_id(3)), phases={"other": 7.0}))
    phases = shown(bench)["attempt_list"][0]["phases"]
    assert phases == {"0": {"forward": 4.5, "eval": 9.0, "data": 0.25}, "1": {"other": 7.0}}


def test_rows_acknowledged_according_to_the_client_are_not_stored_again(bench: Bench) -> None:
    bench.open(ONE, acked=5)
    bench.apply(ingested(5, 5.0))
    bench.apply(ingested(6, 6.0))
    bench.open(ONE, acked=2)
    bench.apply(ingested(6, 6.0))
    assert [row[2] for row in bench.read(1, "loss")] == [6.0]


def test_a_skip_moves_the_number_and_brings_no_steps(bench: Bench) -> None:
    bench.open(ONE)
    bench.apply(batch_ingested(ONE, 9))
    bench.apply(ingested(9, 1.0))
    assert bench.read(1, "loss") == []
    with bench.database.reading() as connection:
        assert attempts.stored_session(connection, ONE) == attempts.StoredSession(9, 0, unowned="run", run="run")


def test_messages_of_an_unknown_session_are_ignored(bench: Bench) -> None:
    bench.apply(
        ingested(1, 1.0),
        RunState("run", 0, "finished", "", 5.0),
        Event("run", 0, 1.0, "x"),
        Alert("a", "b", 1.0, "run"),
    )
    for table in ("log", "run", "event", "alert", "session"):
        assert rows(bench, f"SELECT * FROM {table}") == []


def test_secrets_reach_no_table(bench: Bench) -> None:
    secret = "hunter2hunter2"
    about = ProcessInfo(command=("python", "train.py", f"--api-key={secret}"))
    config = json.dumps({"password": secret, "lr": 0.1})
    bench.open(ONE, config=config, about=about)
    bench.apply(Event("run", 0, 1.0, "x", fields={"api_key": secret}))
    assert secret not in "\n".join(bench.connection.iterdump())
    (attempt,) = shown(bench)["attempt_list"]
    assert attempt["config"] == {"password": REDACTED, "lr": 0.1}
    assert attempt["command"][:2] == ["python", "train.py"]


@pytest.mark.parametrize("config", ["{", "[" * 100_000, '{"a": NaN}', "1" * 5000])
def test_a_configuration_that_is_hard_to_read_costs_nothing_else(config: str, bench: Bench) -> None:
    bench.open(ONE, config=config)
    assert shown(bench)["attempt_list"][0]["config"] is not None


def test_numbers_beyond_the_file_are_the_nearest_that_it_holds(bench: Bench) -> None:
    record = opened(ONE, acked=2**64 - 1)
    bench.apply(record)
    bench.apply(batch_ingested(ONE, 1, [], 2**80))
    bench.open(TWO, rank=2**64 - 1)
    bench.apply(
        batch_ingested(TWO, 1, [block(["a"], [1], [1.0])], 2**64),
        batch_ingested(TWO, 2, [block(["a"], [1], [1.0])], -(2**70)),
    )
    bench.pack(bench.stream(TWO))
    assert len(bench.read(bench.stream(TWO), "a")) == 2


def test_a_run_is_resumed_as_another_attempt(bench: Bench) -> None:
    bench.open(ONE)
    bench.end()
    assert shown(bench)["state"] == "finished"
    bench.open(TWO, attempt=1, step=7)
    run = shown(bench)
    assert (run["state"], run["ended"], run["attempt"]) == ("running", None, 1)
    bench.apply(RunState("run", 0, "failed", "late", 9.0))
    assert shown(bench)["state"] == "running"
    bench.apply(RunState("run", 1, "failed", "ValueError", WALL + 2.0))
    run = shown(bench)
    assert (run["state"], run["cause"], run["ended"]) == ("failed", "ValueError", WALL + 2.0)
    assert [one["state"] for one in run["attempt_list"]] == ["failed", "failed"]


def test_the_step_and_the_loss_of_a_run_are_read_after_packing(bench: Bench) -> None:
    for rank, session in ((0, ONE), (1, TWO), (2, session_id(3))):
        bench.open(session, rank=rank)
    bench.send(ONE, block(["loss"], [1, 2], [0.5, 0.25]))
    bench.send(TWO, block(["loss"], [1, 9], [0.5, 0.125]))
    bench.end()
    bench.pack()
    assert (shown(bench)["step"], shown(bench)["loss"]) == (9, 0.25)


def test_the_loss_of_a_run_is_that_of_the_lowest_rank_that_has_one(bench: Bench) -> None:
    losses = {ONE: {"lr": 0.1}, TWO: {"loss": 0.125}, session_id(3): {"loss": 0.5}}
    for rank, (session, values) in enumerate(losses.items()):
        bench.open(session, rank=rank)
        bench.send(session, block([*values], [1], [*values.values()]))
    for session in reversed(losses):  # in any order
        bench.pack(bench.stream(session))
    with bench.database.reading() as connection:
        assert [run["loss"] for run in reader.runs(connection)] == [0.125]


def test_a_deleted_run_accepts_nothing_more_and_its_id_may_come_again(bench: Bench) -> None:
    bench.open(ONE)
    bench.send(ONE, block(["loss"], [1], [1.0]))
    with bench.database.transaction() as connection:
        connection.execute("UPDATE run SET deleted = 1")
    bench.store.reset()
    bench.apply(ingested(2, 2.0), Event("run", 0, 1.0, "x"), RunState("run", 0, "finished", "", 5.0))
    assert rows(bench, "SELECT count(*) FROM log") == [(1,)]
    assert rows(bench, "SELECT count(*) FROM event") == [(0,)]
    assert not bench.store.due
    bench.open(ONE)
    bench.apply(ingested(3, 3.0))
    stream = bench.stream(ONE)
    assert stream != 1
    assert [row[2] for row in bench.read(stream, "loss")] == [3.0]
    with bench.database.reading() as connection:
        assert [one["id"] for one in reader.runs(connection)] == ["run"]
    check_tables(bench.connection)


def test_the_end_of_a_run_that_pushed_while_it_was_packed_packs_the_rest(bench: Bench) -> None:
    bench.open(ONE)
    for number in range(2):
        bench.send(ONE, block(["a", "b"], [number], [1.0, 2.0]))
    bench.step(1)
    bench.send(ONE, block(["a"], [3], [1.0]))
    bench.end()
    bench.pack()
    bench.check()
    assert rows(bench, "SELECT count(*) FROM log") == [(0,)]


def test_after_a_restart_the_log_of_ended_runs_is_packed(bench: Bench) -> None:
    bench.open(ONE)
    bench.send(ONE, block(["a"], [1], [nan]))
    bench.end()
    bench.reopen()
    assert list(bench.store.due) == [1]
    bench.pack()
    bench.check()


def test_a_log_of_many_rows_is_due(bench: Bench) -> None:
    bench.open(ONE)
    for number in range(512):
        assert not bench.store.due
        bench.send(ONE, block(["a"], [number], [1.0]))
    assert list(bench.store.due) == [1]


def test_alerts_are_renewed_and_events_stored(bench: Bench) -> None:
    bench.open(ONE)
    alert = Alert("Slow", "warning", 5.0, "run", {"b": "1", "a": "2"}, "s", "d")
    bench.apply(
        alert, Alert("Slow", "page", 5.0, "run", {"a": "2", "b": "1"}, "s", "d", 9.0), Alert("Hot", "page", 6.0)
    )
    bench.apply(Event("run", 0, 2.0, "second", 0, 7, {"x": 1}), Event("run", 0, 1.0, "first"))
    with bench.database.reading() as connection:
        reported = alert_reader.alerts(connection)
        assert [(one["alert"], one["severity"], one["ended"], one["run"]) for one in reported] == [
            ("Slow", "page", 9.0, "run"),
            ("Hot", "page", None, None),
        ]
        assert [one["kind"] for one in reader.events(connection, "run")] == ["second", "first"], "as they were sent"
        assert reader.events(connection, "other") == []


def test_each_sink_s_last_report_of_an_alert_is_stored_without_secrets(
    bench: Bench,
) -> None:
    bench.open(ONE)
    slow, hot = Alert("Slow", "warning", 5.0, "run", {"a": "2"}, "s"), Alert("Hot", "critical", 6.0)
    bench.apply(slow, hot, replace(hot, ended=9.0))
    for sink, word in (
        ("webhook", Notified("warning", "s")),
        ("log", Notified("warning", "s")),
        ("webhook", Notified("critical", "password=hush")),
    ):
        bench.apply(clean(AlertNote("Slow", 5.0, "run", {"a": "2"}, notified={sink: word})))
    bench.apply(AlertNote("Hot", 6.0, notified={"log": Notified("critical", "", over=True)}))
    with bench.database.reading() as connection:
        assert [one["notified"] for one in alert_reader.alerts(connection)] == [["log", "webhook"], ["log"]]
        (fires,) = alert_reader.firing(connection, 9.0)
        assert (fires.alert, fires.notified["log"]) == ("Slow", Notified("warning", "s"))
        assert fires.notified["webhook"].severity == "critical"
        assert "hush" not in fires.notified["webhook"].summary
        (over,) = alert_reader.ended(connection, 9.0, 9.0)
        assert (over.alert, over.ended, over.notified) == ("Hot", 9.0, {"log": Notified("critical", "", over=True)})
        assert alert_reader.ended(connection, 9.5, 9.5) == []


def test_an_alert_that_returns_has_neither_its_recovery_nor_the_verdict_of_before(bench: Bench) -> None:
    bench.open(ONE)
    stall = Alert("TrainingStalled", "warning", 5.0, "run", {"a": "2"}, "s", evidence={"since": 4.0})

    def stored() -> dict[str, Any]:
        with bench.database.reading() as connection:
            (found,) = alert_reader.firing(connection, 9.0)
        return dict(found.evidence)

    bench.apply(
        stall, AlertNote("TrainingStalled", 5.0, "run", {"a": "2"}, {"conclusion": "late", "hang": {"kind": "silent"}})
    )
    judged = {"since": 4.0, "conclusion": "late"}
    bench.apply(replace(stall, evidence={**judged, "recovered": 6.0}))
    assert stored() == {**judged, "recovered": 6.0, "hang": {"kind": "silent"}}
    bench.apply(replace(stall, evidence={"since": 7.0}))
    assert stored() == {"since": 7.0}
    gathered = {"addition": "Its command printed: x", "console": ["x"], "exception": {}, "checkpoint": {"step": 1}}
    bench.apply(AlertNote("TrainingStalled", 5.0, "run", {"a": "2"}, gathered))
    bench.apply(replace(stall, evidence={"since": 8.0}))
    assert stored() == {"since": 8.0}


def test_what_was_sampled_of_the_machine_is_a_series_of_its_own(bench: Bench) -> None:
    values = {'trackside_gpu{gpu="0"}': 1.5, "trackside_cpu": inf}
    for number in range(600):
        bench.apply(MachineSample(WALL + 10.0 * number, values))
    bench.pack()
    found = bench.read(0, "trackside_cpu")
    assert [row[1] for row in found] == [round((WALL + 10.0 * number) * 1e6) for number in range(600)]
    assert bits(row[2] for row in found) == bits([inf] * 600)
    bench.open(ONE)
    with bench.database.reading() as connection:
        (one,) = reader.series(connection, "run", ["trackside_gpu"])
    assert (one.rank, one.series.key) == (None, 'trackside_gpu{gpu="0"}')


def test_a_sample_of_the_machine_has_its_time_to_the_microsecond(bench: Bench) -> None:
    times = [WALL * 1_000_000 + number for number in range(123_456, 123_556)]
    bench.apply(*(MachineSample(time / 1e6, {"trackside_cpu": 1.0}) for time in times))
    assert [row[1] for row in bench.read(0, "trackside_cpu")] == times


def test_rows_of_ever_new_keys_are_packed_before_reading_them_needs_much_memory(bench: Bench) -> None:
    bench.open(session_id(1))
    for number in range(40):
        bench.send(session_id(1), block([f"key{key}" for key in range(1000)], [number], [0.5] * 1000))
    assert not bench.store.due, "rows with the same keys share what names them"
    for number in range(40):
        bench.send(session_id(1), block([f"{number}/{key}" for key in range(1000)], [number], [0.5] * 1000))
    assert list(bench.store.due) == [1]
