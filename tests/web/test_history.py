"""Runs of the history in the API, and changes to them."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
import threading
import time
from math import inf, nan
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from http_service import HttpService
from processes import DEADLINE, eventually, http
from session_records import batch_ingested, session_opened
from wire_messages import WALL, FakeSession, pushed

from trackside.wire import Stacks
from trackside_daemon.history.files import selection
from trackside_daemon.history.files.importing import ImportResult
from trackside_daemon.history.files.selection import count
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.series import Window
from trackside_daemon.history.record import run_changes
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.records import Alert, Event, MachineSample, RunState, SessionOpened
from trackside_daemon.questions import curves
from trackside_daemon.questions.curves import read_charts
from trackside_daemon.web.api import history as pages
from trackside_daemon.web.api import history_access as writing
from trackside_daemon.web.api.endpoints import ENDPOINTS
from trackside_daemon.web.api.openapi import document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Site  # type: ignore[attr-defined]
    from wire_messages import RunsHarness

    from trackside_daemon.history.files.run_file import RunFile

BASE = "http://127.0.0.1:21790"
SHIFT = round((WALL - 50.0) * 1e9)
"""Offset from the clock of `pushed` to Unix time."""


def opened(session: FakeSession, **hello: Any) -> SessionOpened:
    identity = session.identity
    return session_opened(session.id, session.hello(**hello), identity.name, identity.attempt, WALL)


def stored_run(site: Site, values: dict[str, list[float]], **identity: Any) -> FakeSession:
    """Add an ended run with one step a second, and one value per step for each key."""
    session = FakeSession(**identity)
    rows = [(float(step), step, row) for step, row in enumerate(zip(*values.values(), strict=True))]
    site.keep(opened(session), batch_ingested(session.id, 1, [pushed(values, *rows)], SHIFT), ended(session))
    return session


def ended(session: FakeSession, state: str = "finished") -> RunState:
    return RunState(session.identity.run, session.identity.attempt, state, "", WALL + 100)


def refused(site: Site, path: str, method: str = "GET", **more: Any) -> tuple[int, str]:
    """Return status and message of an error response."""
    answer = site.client().ask(method, f"/api/v1/{path}", headers=site.key, **more)
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"reason", "message"}
    assert "\n" not in body["error"]["message"]
    return answer.status_code, body["error"]["message"]


def test_a_run_on_the_page_is_listed_once_with_its_ranks_and_its_newest_numbers(
    site: Site, house: RunsHarness, api: Callable[[str], Any]
) -> None:
    session = FakeSession()
    site.keep(opened(session))
    house.hello(session)
    house.push(session, {"loss": 2.5}, step=7)
    (run,) = api("runs")["runs"]
    assert (run["state"], run["step"], run["loss"]) == ("running", 7, 2.5)
    assert [rank["rank"] for rank in run["ranks"]] == [0]
    assert run["started"] == WALL


@pytest.mark.parametrize("key", ["loss", "train_loss", "train/loss"])
def test_the_loss_in_the_list_has_any_of_its_names(
    site: Site, house: RunsHarness, api: Callable[[str], Any], key: str
) -> None:
    session = FakeSession()
    site.keep(opened(session))
    house.hello(session)
    house.push(session, {key: 2.5}, step=7)
    (run,) = api("runs")["runs"]
    assert (run["step"], run["loss"], run["ranks"][0]["loss"]) == (7, 2.5, 2.5)


def test_a_live_run_that_cannot_be_written_is_listed_all_the_same_with_all_fields(
    site: Site, house: RunsHarness, api: Callable[[str], Any]
) -> None:
    session = FakeSession()
    house.hello(session)
    house.push(session, {"loss": 2.5}, step=7)
    (run,) = api("runs")["runs"]
    assert (run["name"], run["started"], run["step"], run["loss"]) == ("train", WALL, 7, 2.5)
    stored = FakeSession("id-2", name="stored")
    site.keep(opened(stored), ended(stored))
    unwritten, written = api("runs")["runs"]
    assert (unwritten["id"], written["id"]) == ("id-1", "id-2")
    assert written.keys() <= unwritten.keys()


def test_a_live_run_that_the_limit_cuts_off_is_listed_last_with_all_fields(
    site: Site, house: RunsHarness, api: Callable[[str], Any]
) -> None:
    long = FakeSession(name="long")
    site.keep(opened(long, tags=("sweep",)))
    house.hello(long)
    house.push(long, {"loss": 2.5}, step=7)
    for number in (2, 3):
        short = FakeSession(f"id-{number}", name="short")
        record = opened(short)
        record.hello.started += number * 1_000_000_000
        site.keep(record, ended(short))
    (everything,) = [run for run in api("runs")["runs"] if run["name"] == "long"]
    newest, cut_off = api("runs?limit=1")["runs"]
    assert (newest["id"], cut_off["id"]) == ("id-3", "id-1")
    assert cut_off == everything
    assert (cut_off["started"], cut_off["tags"], cut_off["step"]) == (WALL, ["sweep"], 7)
    for only_stored in ("name=short", "state=finished", f"since={WALL + 1}"):
        assert [run["id"] for run in api(f"runs?limit=1&{only_stored}")["runs"]] == ["id-3"]


def test_all_ranks_come_as_a_band(site: Site, api: Callable[[str], Any]) -> None:
    for rank, values in enumerate(([1.0, 2.0, nan, 4.0], [3.0, nan, nan, 9.0], [8.0, 7.0, nan])):
        stored_run(site, {"loss": values}, rank=rank, world=3)
    ranks = api("series?run=id-1&key=loss&rank=all")["series"]
    (band,) = api("series?run=id-1&key=loss&ranks=band")["series"]
    assert {name: band[name] for name in ("run", "attempt", "key", "ranks")} == {
        "run": "id-1",
        "attempt": 0,
        "key": "loss",
        "ranks": 3,
    }
    assert [point[:2] for point in band["points"]] == [point[:2] for point in ranks[0]["points"]]
    assert [point[2:] for point in band["points"]] == [[1, 8, 3], [2, 7, 4.5], ["nan"] * 3, [4, 9, 6.5]]
    (timed,) = api("series?run=id-1&key=loss&ranks=band&by=time")["series"]
    assert timed["points"] == band["points"]
    (part,) = api("series?run=id-1&key=loss&ranks=band&rank=0&rank=1&from=3")["series"]
    assert (part["ranks"], [point[2:] for point in part["points"]]) == (2, [[4, 9, 6.5]])
    (coarse,) = api("series?run=id-1&key=loss&ranks=band&points=2")["series"]
    assert [point[2:4] for point in coarse["points"]] == [[1, 8], [4, 9]]
    assert (band["nonfinite"], coarse["nonfinite"]) == ([0, 1, 3, 0], [1, 3])
    assert "nonfinite" not in part
    assert api("series?run=id-1&key=loss&ranks=band&points=0")["series"] == [band]
    assert refused(site, "series?run=id-1&ranks=x")[0] == 400


def test_a_band_has_more_ranks_than_an_answer_has_lines(
    site: Site, api: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MAX_SERIES", 2)
    for rank in range(3):
        stored_run(site, {"loss": [1.0]}, rank=rank, world=3)
    (band,) = api("series?run=id-1&key=loss&ranks=band")["series"]
    assert band["ranks"] == 3
    assert refused(site, "series?run=id-1&key=loss&rank=all")[0] == 400
    monkeypatch.setattr(curves, "MAX_BAND_SERIES", 2)
    assert refused(site, "series?run=id-1&key=loss&ranks=band")[0] == 400


def test_a_run_has_its_configuration_attempts_and_each_metric(site: Site, api: Callable[[str], Any]) -> None:
    session = FakeSession("id-7", world=2)
    site.keep(
        opened(session, config=json.dumps({"lr": 0.1, "api_key": "sk-abcdefghijklmnop1234"}), total_steps=5),
        batch_ingested(session.id, 1, [pushed(["loss"], (0, 0, (3.0,)), (1, 1, (1.0,)), (2, 2, (2.0,)))], SHIFT),
    )
    run = api("runs/id-7")
    assert run["attempt_list"][0]["config"] == {"lr": 0.1, "api_key": "[redacted]"}
    assert run["attempt_list"][0]["world_size"] == 2
    (loss,) = run["metrics"]
    assert (loss["key"], loss["count"], loss["last_time"], loss["mean"]) == ("loss", 3, WALL + 2, 2.0)


@pytest.mark.parametrize("name", ["id-1", "id", "train"])
def test_a_run_is_found_by_id_beginning_and_name(site: Site, api: Callable[[str], Any], name: str) -> None:
    stored_run(site, {"loss": [1.0]})
    assert api(f"runs/{name}")["id"] == "id-1"


@pytest.mark.parametrize(
    "id_",
    [
        "a/b",
        "<b>",
        "ü%",
        "a b?c#d",
        "x/pin",
        "r/series",
        "a/export",
        "50%25",
        "%2F",
        "/",
        "a/series/series",
        "ü+ü",
    ],
)
def test_an_id_may_be_any_text(site: Site, api: Callable[[str], Any], id_: str) -> None:
    stored_run(site, {"loss": [2.0]}, run=id_.partition("/")[0] if "/" in id_ else "other", name="other")
    stored_run(site, {"loss": [1.0]}, run=id_)
    assert api(f"runs/{quote(id_, safe='')}")["id"] == id_
    assert api(f"runs/{quote(id_, safe='')}/series?key=loss")["points"] == [[0, WALL, 1.0, 1.0, 1.0]]
    client, path = site.client(), f"/api/v1/runs/{quote(id_, safe='')}"
    assert client.get(f"{path}/export", headers=site.key).headers["x-trackside-samples"] == "1"
    assert client.ask("POST", f"{path}/pin", headers=site.key, json={"pinned": True}).json() == {"pinned": True}
    assert client.ask("DELETE", path, headers=site.key).json() == {"deleted": id_}


def test_every_sample_comes_with_points_0_and_nan_as_text(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0, nan, inf, -inf]})
    points = [[0, WALL, 1.0], [1, WALL + 1, "nan"], [2, WALL + 2, "inf"], [3, WALL + 3, "-inf"]]
    assert api("runs/id-1/series?key=loss&points=0") == {"key": "loss", "points": points}
    (long,) = api("series?run=id-1&points=0")["series"]
    assert long == {"run": "id-1", "attempt": 0, "rank": 0, "key": "loss", "points": points}
    assert api("runs/id-1/series?key=loss")["points"][1] == [1, WALL + 1, "nan", "nan", "nan"]


def test_what_is_not_finite_amid_a_bucket_is_counted_across_attempts(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0, nan, 2.0, 3.0, inf, nan, nan, 4.0], "lr": [1.0] * 8})
    stored_run(site, {"loss": [1.0, 2.0]}, attempt=1)
    (first, again) = api("series?run=id-1&key=loss&points=2")["series"]
    assert [point[2:] for point in first["points"]] == [[1, 3, 3], [4, "inf", 4]]
    assert first["nonfinite"] == [1, 3]
    assert "nonfinite" not in again
    both = api("runs/id-1/series?key=loss&points=4")
    assert (len(both["points"]), both["nonfinite"]) == (4, [1, 3, 0, 0])
    assert set(api("runs/id-1/series?key=lr&points=2")) == {"key", "points"}


def test_several_runs_keys_and_ranks_come_at_once(site: Site, api: Callable[[str], Any]) -> None:
    for run in ("a", "b"):
        for rank in (1, 0):
            stored_run(site, {"loss": [1.0], "lr": [2.0], "other": [3.0]}, run=run, rank=rank)

    def found(question: str) -> list[tuple[str, int, str]]:
        return [(one["run"], one["rank"], one["key"]) for one in api(f"series?{question}")["series"]]

    assert found("run=a&run=b&key=loss&key=lr") == [("a", 0, "loss"), ("a", 0, "lr"), ("b", 0, "loss"), ("b", 0, "lr")]
    assert found("run=a&key=loss&rank=1") == [("a", 1, "loss")]
    assert found("run=a&key=loss&rank=all") == [("a", 0, "loss"), ("a", 1, "loss")]
    assert found("run=a&key=nothing&key=lr&missing=ignore") == [("a", 0, "lr")]
    status, text = refused(site, "series?run=a&run=b&key=loss&key=los")
    assert (status, text) == (404, "key 'los': no run of these has it; did you mean loss?")


@pytest.mark.parametrize("question", ["from=1&to=2", f"by=time&from={WALL + 1}&to={WALL + 2}"])
@pytest.mark.parametrize("points", [0, 100])
def test_a_window_is_by_step_or_by_time(site: Site, api: Callable[[str], Any], question: str, points: int) -> None:
    stored_run(site, {"loss": [5.0, 1.0, 9.0, 4.0]})
    (found,) = api(f"series?run=id-1&key=loss&points={points}&{question}")["series"]
    assert [point[0] for point in found["points"]] == [1, 2]


def test_a_step_may_be_a_count_of_tokens(site: Site, api: Callable[[str], Any]) -> None:
    session = FakeSession()
    site.keep(
        opened(session),
        batch_ingested(session.id, 1, [pushed(["x"], (0.0, 1, (1.0,)), (1.0, 15 * 10**12, (2.0,)))], SHIFT),
    )
    for points in (0, 100):
        (found,) = api(f"series?run=id-1&from=14e12&to=9e18&points={points}")["series"]
        assert [point[-1] for point in found["points"]] == [2.0]


def test_attempts_come_in_their_order_or_one_alone(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0, 2.0]})
    stored_run(site, {"loss": [3.0]}, attempt=1)
    assert [one["attempt"] for one in api("series?run=id-1&key=loss")["series"]] == [0, 1]
    assert [one["attempt"] for one in api("series?run=id-1&key=loss&attempt=1")["series"]] == [1]
    assert [point[-1] for point in api("runs/id-1/series?key=loss")["points"]] == [1.0, 2.0, 3.0]


def test_gpu_and_host_series_are_those_of_the_runs_time(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0]})
    watts = 'trackside_gpu_power_watts{gpu="0"}'
    site.keep(
        *(MachineSample(WALL + after, {watts: 100.0 + after, "trackside_cpu": 1.0}) for after in (-10.0, 50.0, 200.0))
    )
    (found,) = api("series?run=id-1&key=trackside_gpu_power_watts")["series"]
    assert (found["key"], found["rank"], found["attempt"]) == (watts, None, None)
    assert [point[-1] for point in found["points"]] == [150.0]
    assert len(api(f"series?run=id-1&points=0&key={quote(watts)}")["series"][0]["points"]) == 1


def test_the_processes_of_a_run_report_where_they_are_and_which_are_silent(
    site: Site, api: Callable[[str], Any]
) -> None:
    session = stored_run(site, {"loss": [1.0]})
    site.speaking = frozenset((0, 1)), [RankAnswer(1, 0.5, Stacks({"MainThread 7": ["train.py:3 main"]}))]
    assert api(f"runs/{session.identity.name}/stacks") == {
        "ranks": [{"rank": 1, "seconds": 0.5, "threads": {"MainThread 7": ["train.py:3 main"]}}],
        "silent": [0],
    }
    assert site.asked == ("stacks?", session.identity.run)
    site.speaking = frozenset((0,)), [RankAnswer(0, 0.25, None)]
    assert api(f"runs/{session.identity.run}/ping") == {"ranks": [{"rank": 0, "seconds": 0.25}], "silent": []}
    site.speaking = frozenset(), []
    status, message = refused(site, f"runs/{session.identity.name}/stacks")
    assert (status, message) == (404, "run 'train' has no process connected to this daemon now")


def test_the_ranks_of_a_run_are_asked_to_send_its_layers(site: Site) -> None:
    session = stored_run(site, {"loss": [1.0]})
    site.speaking = frozenset((1, 0)), []
    path = f"runs/{session.identity.name}/layers"
    asked = site.client().ask("POST", f"/api/v1/{path}?steps=7", headers=site.key)
    assert asked.json() == {"steps": 7, "ranks": [0, 1]}
    assert site.asked == (session.identity.run, "7")
    assert refused(site, f"{path}?steps=10001", "POST")[0] == 400
    site.speaking = frozenset(), []
    assert refused(site, path, "POST") == (404, "run 'train' has no process connected to this daemon now")
    assert site.asked == (session.identity.run, "100")


def test_events_and_alerts_are_listed_of_all_or_of_one_run(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0]})
    stored_run(site, {"loss": [1.0]}, run="id-2", name="other")
    site.keep(
        Event("id-1", 0, WALL, "checkpoint", 0, 5, {"path": "a.pt"}),
        Event("id-2", 0, WALL + 1, "resume"),
        Alert("LossSpike", "warning", WALL, "id-1", {"rank": "0"}, "loss 9", "it rose"),
        Alert("GpuHot", "critical", WALL + 2, labels={"gpu": "1"}, ended=WALL + 3),
    )
    (event,) = api("events?run=train")["events"]
    assert (event["name"], event["step"], event["fields"]) == ("train", 5, {"path": "a.pt"})
    assert [event["kind"] for event in api("events")["events"]] == ["checkpoint", "resume"]
    assert [event["kind"] for event in api("events?limit=1")["events"]] == ["resume"]
    assert [alert["alert"] for alert in api("alerts")["alerts"]] == ["LossSpike", "GpuHot"]
    (spike,) = api("alerts?run=id-1")["alerts"]
    assert (spike["labels"], spike["ended"], spike["summary"]) == ({"rank": "0"}, None, "loss 9")


WRONG = (
    ("series", "run: name at least one run"),
    ("series?run=id-1&points=-1", "points: '-1'"),
    ("series?run=id-1&points=99999999999", "points:"),
    ("series?run=id-1&points=٣", "points:"),
    ("series?run=id-1&by=epoch", "by: must be step or time"),
    ("series?run=id-1&from=nan", "from: 'nan'"),
    ("series?run=id-1&to=x", "to: 'x'"),
    ("series?run=id-1&from=-1e19", "from: '-1e19'"),
    ("series?run=id-1&to=inf", "to: 'inf'"),
    ("runs?since=1e300", "since: '1e300'"),
    ("series?run=id-1&rank=99999999999999999999", "rank: '99999999999999999999'"),
    ("series?run=id-1&attempt=99999999999999999999", "attempt: '99999999999999999999'"),
    ("series?run=id-1&rank=٣", "rank: '٣'"),
    ("series?run=id-1&rank=x", "rank: 'x'"),
    ("series?run=id-1&attempt=x", "attempt: 'x'"),
    ("runs/id-1/series", "key: name exactly one key"),
    ("runs/id-1/series?key=a&key=b", "key: name exactly one key"),
    ("runs?limit=x", "limit: 'x'"),
    ("runs?since=yesterday", "since: 'yesterday'"),
    ("runs/id-1/export?format=xml", "format: must be one of csv, json, jsonl"),
    ("runs/id-1/export?rank=x", "rank: 'x'"),
    ("runs/id-1/export?by=epoch", "by: must be step or time"),
    ("runs/id-1/export?from=x", "from: 'x'"),
)


def test_a_wrong_question_is_answered_with_what_is_right(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    for path, expected in WRONG:
        status, message = refused(site, path)
        assert (status, expected in message) == (400, True), (path, message)


def test_a_run_gets_a_name_notes_and_tags_when_it_has_ended(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0]}, run="id-1", name="old")
    live = FakeSession("id-2", name="live")
    site.keep(opened(live))
    wanted = {"name": "new", "notes": "postgres://me:geheim@host", "tags": ["a", "b"]}
    answer = site.client().ask("POST", "/api/v1/runs/id-1/about", headers=site.key, json=wanted)
    assert answer.status_code == 200
    run = api("runs/id-1")
    assert (run["name"], run["tags"]) == ("new", ["a", "b"])
    assert "geheim" not in run["notes"]
    site.client().ask("POST", "/api/v1/runs/id-2/about", headers=site.key, json={"notes": "still runs"})
    assert (api("runs/id-2")["notes"], api("runs/id-2")["name"]) == ("still runs", "live")
    status, message = refused(site, "runs/id-2/about", "POST", json={"name": "other"})
    assert (status, "it can be renamed when it has" in message) == (409, True)
    bodies: list[Any] = [{"name": ""}, {"tag": ["a"]}, {"tags": [1]}, [], {"notes": "x" * 10_001}]
    for body in bodies:
        assert refused(site, "runs/id-1/about", "POST", json=body)[0] == 400
    assert refused(site, "runs/nobody/about", "POST", json={})[0] == 404


def test_notes_that_others_have_changed_since_an_edit_began_are_not_overwritten(
    site: Site, api: Callable[[str], Any]
) -> None:
    stored_run(site, {"loss": [1.0]}, run="id-1")

    def write(**body: str) -> int:
        return int(site.client().ask("POST", "/api/v1/runs/id-1/about", headers=site.key, json=body).status_code)

    assert write(notes="theirs", notes_before="") == 200
    status, message = refused(
        site, "runs/id-1/about", "POST", json={"notes": "mine", "notes_before": "", "tags": ["x"]}
    )
    assert (status, message) == (409, "others have changed the notes meanwhile; they are now: theirs")
    assert (api("runs/id-1")["notes"], api("runs/id-1")["tags"]) == ("theirs", [])
    assert write(notes="theirs", notes_before="") == 200, "it is the same"
    assert write(notes="mine", notes_before="theirs") == write(notes="anything") == 200
    assert api("runs/id-1")["notes"] == "anything"


def test_a_run_is_annotated_at_a_step_or_a_time(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [2.0, 1.0]}, run="id-1")

    def annotate(**body: Any) -> dict[str, Any]:
        answer = site.client().ask("POST", "/api/v1/runs/id-1/annotations", headers=site.key, json=body)
        assert answer.status_code == 200
        return {**answer.json(), "events": [(one["step"], one["fields"]["text"]) for one in noted()]}

    def noted() -> list[dict[str, Any]]:
        return [one for one in api("events?run=id-1")["events"] if one["kind"] == "annotation"]

    assert annotate(text="lr halved", step=1, time=WALL + 1)["events"] == [(1, "lr halved")]
    assert (noted()[0]["attempt"], noted()[0]["rank"], noted()[0]["time"]) == (0, None, WALL + 1)
    # One at the same step, or at the same time, takes its place; an empty text removes it.
    assert annotate(text=" postgres://me:geheim@host ", step=1, time=WALL)["events"] == [
        (1, "postgres://me:[redacted]@host")
    ]
    assert annotate(text="begun", time=WALL)["events"] == [(None, "begun")]
    assert annotate(text="now")["events"] == [(None, "begun"), (None, "now")]
    assert annotate(text=" ", time=WALL)["events"] == [(None, "now")]
    bodies: list[Any] = [{}, {"text": "x" * 1001}, {"text": "x", "step": 1.5}, {"text": "x", "time": -1}, {"text": 1}]
    bodies.append({"text": "x", "time": time.time() + 90_000})  # the newest event tells a wrong clock at the next start
    for body in bodies:
        assert refused(site, "runs/id-1/annotations", "POST", json=body)[0] == 400
    assert refused(site, "runs/nobody/annotations", "POST", json={"text": "x"})[0] == 404


def test_a_note_replaces_that_at_its_step_in_any_attempt_and_no_event_of_the_training(
    site: Site, api: Callable[[str], Any]
) -> None:
    stored_run(site, {"loss": [2.0, 1.0]}, run="id-1")
    site.keep(Event("id-1", 0, WALL + 1, "annotation", 0, 1, {"text": "own"}))

    def annotated(text: str, moment: float) -> list[str]:
        body = {"text": text, "step": 1, "time": moment}
        assert (
            site.client().ask("POST", "/api/v1/runs/id-1/annotations", headers=site.key, json=body).status_code == 200
        )
        return [one["fields"]["text"] for one in api("events?run=id-1")["events"] if one["kind"] == "annotation"]

    assert annotated("a note", WALL + 2) == ["own", "a note"]
    stored_run(site, {"loss": [2.0, 1.0]}, run="id-1", attempt=1)
    assert annotated("another", WALL + 1000) == ["own", "another"]
    assert annotated("", WALL + 1001) == ["own"]


def test_a_list_of_runs_has_configurations_and_values_of_keys(site: Site, api: Callable[[str], Any]) -> None:
    session = stored_run(site, {"loss": [3.0, 1.0, nan, 2.0], "lr": [1.0] * 4}, run="id-1")
    configured = FakeSession("id-2", name="configured")
    site.keep(opened(configured, config='{"lr": 0.1, "model": {"layers": 2}}'), ended(configured))
    eventually(lambda: site.history.writer.call(lambda store: not store.due).result(60))
    runs = {run["id"]: run for run in api("runs?config=true&metric=loss&metric=nothing")["runs"]}
    assert runs["id-2"]["config"] == {"lr": 0.1, "model": {"layers": 2}}
    assert runs["id-1"]["config"] is None
    assert runs["id-1"]["metrics"] == {"loss": {"last": 2.0, "min": 1.0, "max": 3.0}}
    assert runs["id-2"]["metrics"] == {}
    assert api("keys") == {"keys": ["loss", "lr"]}
    assert "config" not in api("runs")["runs"][0]
    assert refused(site, "runs?" + "&".join(f"metric=k{number}" for number in range(65)))[0] == 400

    # A bucket of several samples has their mean, without those that are not finite.
    (chart,) = api(f"series?run={session.identity.run}&key=loss&points=2&mean=true")["series"]
    assert (chart["means"], chart["nonfinite"]) == ([2.0, 2.0], [0, 1])
    assert "means" not in api("series?run=id-1&key=loss&points=2")["series"][0]
    assert "means" not in api("series?run=id-1&key=loss&points=9&mean=true")["series"][0]


def test_a_run_is_pinned_and_let_go(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0]})
    for pinned in (True, False):
        answer = site.client().ask("POST", "/api/v1/runs/id-1/pin", headers=site.key, json={"pinned": pinned})
        assert answer.json() == {"pinned": pinned}
        assert api("runs/id-1")["pinned"] is pinned
    assert refused(site, "runs/id-1/pin", "POST", content=b"yes")[0] == 400
    assert refused(site, "runs/id-1/pin", "POST", content=b'{"\xff": true}')[0] == 400
    assert refused(site, "runs/nope/pin", "POST", json={"pinned": True})[0] == 404


def test_the_end_of_a_run_is_checked_where_it_is_deleted(site: Site, api: Callable[[str], Any]) -> None:
    site.keep(opened(FakeSession()))
    with pytest.raises(ValueError, match=r"^run 'id-1' has not ended; it can be deleted when it has$"):
        site.history.writer.call(lambda store: run_changes.delete(store, "id-1", live=False)).result(60)
    assert [run["id"] for run in api("runs")["runs"]] == ["id-1"]


def test_changes_that_wait_for_the_writer_keep_no_reader_waiting(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    over = threading.Event()
    site.history.writer.call(lambda _: over.wait(DEADLINE))

    async def ask() -> tuple[int, bool, set[int]]:
        async with httpx.AsyncClient(transport=site.client().transport, base_url=BASE, headers=site.key) as client:
            path = "/api/v1/runs/id-1/pin"
            pins = [asyncio.create_task(client.post(path, json={"pinned": True})) for _ in range(60)]
            await asyncio.sleep(0.3)
            read = await client.get("/api/v1/runs")
            waiting = not any(pin.done() for pin in pins)
            over.set()
            return read.status_code, waiting, {one.status_code for one in await asyncio.gather(*pins)}

    assert asyncio.run(ask()) == (200, True, {200})


def test_a_slow_change_is_answered(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    over = threading.Event()
    site.history.writer.call(lambda _: over.wait(DEADLINE))
    answer = site.client(change_timeout=0.05).ask(
        "POST", "/api/v1/runs/id-1/pin", headers=site.key, json={"pinned": True}
    )
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        503,
        "the history is busy; the change may still happen, so check before you retry",
    )
    over.set()


def test_a_change_that_the_daemons_end_overtakes_is_answered(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    site.history.stop()
    status, message = refused(site, "runs/id-1/pin", "POST", json={"pinned": True})
    assert (status, message) == (503, "the daemon is stopping; the change was not made")


@pytest.mark.parametrize(("most", "each"), [(6, 3), (1, 2), (100, 8)])
def test_an_answer_has_at_most_so_many_buckets_and_a_series_two_at_least(
    site: Site, api: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, most: int, each: int
) -> None:
    stored_run(site, {"loss": [float(step) for step in range(8)], "lr": [1.0] * 8})
    monkeypatch.setattr(curves, "MAX_BUCKETS", most)
    found = api("series?run=id-1")["series"]
    assert [len(one["points"]) for one in found] == [each, each]
    assert (found[0]["points"][-1][-1], found[0]["samples"]) == (7.0, 8)
    assert "at most 200000 buckets" in api("openapi.json")["paths"]["/series"]["get"]["description"]


def test_the_metrics_of_a_run_come_in_pages(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"a": [1.0], "b": [2.0], "c": [3.0]})
    pages = [api(f"runs/id-1?limit=2&offset={offset}") for offset in (0, 2)]
    assert [[metric["key"] for metric in page["metrics"]] for page in pages] == [["a", "b"], ["c"]]
    assert {page["series"] for page in pages} == {3}
    for question in ("runs/id-1?limit=100001", "events?limit=10001", "alerts?limit=10001", "runs?limit=10001"):
        assert refused(site, question)[0] == 400
    assert api("alerts?limit=10000") == {"alerts": []}
    parameters = api("openapi.json")["paths"]["/runs/{id}/export"]["get"]["parameters"]
    (key,) = [parameter["description"] for parameter in parameters if parameter["name"] == "key"]
    assert "except for /export" in key
    assert refused(site, "runs/id-1/export?key=trackside_gpu_power_watts")[0] == 404
    described = api("openapi.json")["paths"]["/runs/{id}"]["get"]["parameters"]
    bounds = {parameter["name"]: parameter["schema"].get("maximum") for parameter in described}
    assert (bounds["limit"], bounds["offset"]) == (100_000, 999_999_999)
    assert api("runs/id-1/series?key=a&by=time&from=1e15")["points"] == []  # later than any time
    assert refused(site, "runs/id-1/layers?to=1e19")[0] == 400


def test_each_chart_is_of_one_moment_though_its_series_is_packed_meanwhile(site: Site) -> None:
    session = FakeSession()
    rows = [(float(step), step, (float(step), 1.0)) for step in range(4)]
    site.keep(opened(session), batch_ingested(session.id, 1, [pushed(["loss", "lr"], *rows)], SHIFT))
    with site.history.database.reading() as connection:
        found = list(reader.series(connection, "id-1"))
    site.keep(ended(session))
    eventually(lambda: site.history.writer.call(lambda store: not store.due).result(60))
    charts = read_charts(site.history.database, found, Window(), 100)
    assert [(len(one["points"]), one["samples"]) for one in charts] == [(4, 4), (4, 4)]


def test_a_stream_of_samples_that_cannot_be_read_breaks_off_with_one_line(
    site: Site, api: Callable[[str], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_run(site, {"loss": [1.0, 2.0]})

    def damaged(*_: object) -> Any:
        yield b'{"series":['
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(curves, "stream_series", damaged)
    service = HttpService(site.client().transport.app)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        http.get(f"{service.url}/api/v1/series?run=id-1&points=0", headers={**site.key, "Host": "127.0.0.1:21790"})
    service.server.stop()
    lines = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [(line.getMessage(), line.exc_info) for line in lines] == [
        ("an answer breaks off: the history cannot be read: database disk image is malformed", None)
    ]


def test_half_a_surrogate_pair_is_answered_as_a_question_mark() -> None:
    assert writing.json_response({"config": {"\ud800": ["\udfff", nan]}}).body == b'{"config":{"?":["?",null]}}'


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_part_of_a_run_is_exported_and_imported(site: Site, api: Callable[[str], Any], form: str) -> None:
    for rank in (0, 1):
        stored_run(site, {"lr": [0.1] * 4, "loss": [5.0, nan, 9.0, float(rank)], "x": [1.0] * 4}, rank=rank, world=2)
    path = f"/api/v1/runs/id-1/export?format={form}&key=loss&key=lr&rank=1&by=time&from={WALL + 1}&to={WALL + 3}"
    client = site.client()
    exported = client.get(path, headers=site.key)
    asked = client.ask("HEAD", path, headers=site.key)
    assert exported.headers["x-trackside-samples"] == asked.headers["x-trackside-samples"] == "6"
    assert (asked.content, asked.headers["content-type"]) == (b"", exported.headers["content-type"])
    assert "content-length" not in asked.headers
    again = client.ask(
        "POST",
        "/api/v1/import?id=id-9",
        headers={**site.key, "X-File-Name": f"run.{form}"},
        content=exported.content,
    ).json()
    assert (again["run"], again["samples"]) == ("id-9", 6)
    first, second = (api(f"series?run={run}&rank=1&points=0")["series"] for run in ("id-1", "id-9"))
    assert {one["key"]: one["points"] for one in second} == {
        one["key"]: one["points"][1:] for one in first if one["key"] != "x"
    }


def test_a_part_in_which_a_key_has_nothing_is_imported_without_it(site: Site, api: Callable[[str], Any]) -> None:
    session = FakeSession()
    rows = [pushed(["a"], (0, 0, (1.0,))), pushed(["b"], (1, 1, (2.0,)))]
    site.keep(opened(session), batch_ingested(session.id, 1, rows, SHIFT), ended(session))
    exported = site.client().get("/api/v1/runs/id-1/export?format=json&from=1", headers=site.key).content
    assert [len(one["points"]) for one in json.loads(exported)["series"]] == [0, 1]
    site.client().ask("POST", "/api/v1/import?id=id-9", headers=site.key, content=exported)
    assert [(one["key"], one["points"]) for one in api("series?run=id-9&points=0")["series"]] == [
        ("b", [[1, WALL + 1, 2.0]])
    ]


def test_a_part_that_a_run_lacks_is_refused(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    for asked, expected in (
        ("key=loss&key=nope", "key 'nope': run 'id-1' has no such key"),
        ("key=nope&rank=0", "key 'nope': run 'id-1' has no such key for rank 0"),
        ("key=loss&rank=7", "run 'id-1' has no samples of rank 7"),
        ("rank=7&attempt=3", "run 'id-1' has no samples of rank 7, attempt 3"),
        ("key=trackside_cpu_cpus", "key 'trackside_cpu_cpus': run 'id-1' has no such key"),
    ):
        assert refused(site, f"runs/id-1/export?{asked}") == (404, expected)


def test_a_key_that_is_named_as_the_machines_are_is_exported_when_it_was_pushed(site: Site) -> None:
    stored_run(site, {"loss": [1.0], "trackside_mine": [7.0]})
    answer = site.client().get("/api/v1/runs/id-1/export?key=trackside_mine", headers=site.key)
    assert answer.text.splitlines()[0].split(",")[4:] == ["trackside_mine"]
    assert answer.text.splitlines()[1].endswith(",7.0")


def test_an_export_waits_for_the_history_in_a_thread_and_a_deleted_run_is_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = stored_run(site, {"loss": [1.0]})
    head, threads = reader.head, []

    def record_thread(connection: Any, uid: str) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return head(connection, uid)

    monkeypatch.setattr(reader, "head", record_thread)
    assert site.client().get("/api/v1/runs/id-1/export", headers=site.key).status_code == 200

    def delete(*asked: Any) -> int:
        site.history.writer.call(lambda store: run_changes.delete(store, session.identity.run, live=False)).result(60)
        return count(*asked)

    monkeypatch.setattr(selection, "count", delete)
    assert refused(site, "runs/id-1/export") == (404, "run 'id-1': there is none")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_a_line_that_cannot_be_read_costs_itself_and_the_answer_counts_it(site: Site) -> None:
    for content in (b"step,loss\n1,2.0\n2,abc\n", b'{"step":1,"x":2}\n{"a":' + b"[" * 200_000):
        answer = site.client().ask("POST", "/api/v1/import", headers=site.key, content=content).json()
        assert answer["samples"] == 1
        assert [note for note in answer["notes"] if note.startswith("left out: 1 ")]


def test_a_file_is_stored_beside_the_history_without_a_name_while_it_is_read(
    site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[dict[str, Any]] = []
    names: list[set[str]] = []

    def make(**more: Any) -> Any:
        where.append(more)
        return TemporaryFile(**more)

    def record_names(_: object, reading: RunFile) -> ImportResult:
        names.append({path.name for path in place.iterdir()})
        return ImportResult(reading.run, len(list(reading)), [])

    monkeypatch.setattr(pages, "TemporaryFile", make)
    monkeypatch.setattr("trackside_daemon.history.files.importing.import_run", record_names)
    before = {path.name for path in place.iterdir()}
    assert site.client().ask("POST", "/api/v1/import", headers=site.key, content=b"step,x\n0,1\n").status_code == 200
    assert (where, names) == ([{"dir": place}], [before])


def test_a_file_that_there_is_no_room_for_is_refused_in_a_line(
    site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"step,x\n" + b"0,1\n" * 1000
    with monkeypatch.context() as patched:
        patched.setattr(pages, "MAX_IMPORT_BYTES", 1000)
        assert refused(site, "import", "POST", content=content) == (
            507,
            f"{place}: has room for a file of 0.977 KiB; free disk space, or import the file in parts",
        )

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pages, "TemporaryFile", full)
    status, message = refused(site, "import", "POST", content=content)
    assert (status, message) == (
        507,
        f"{place}: the file cannot be stored there during the import: no space left on device",
    )


def test_nothing_of_it_is_returned_without_the_token(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    for one in ENDPOINTS:
        path = one.path.replace("{id}", "id-1")
        assert site.client().ask(one.method, f"/api/v1{path}").status_code == 401


def test_public_reading_opens_no_door_to_changes(site: Site) -> None:
    stored_run(site, {"loss": [1.0]})
    client = site.client(public_read=True)
    assert client.get("/api/v1/runs/id-1").status_code == 200
    assert client.ask("DELETE", "/api/v1/runs/id-1").status_code == 401
    assert client.ask("POST", "/api/v1/runs/id-1/pin", json={"pinned": True}).status_code == 401


def test_the_document_names_the_statuses_and_media_types_of_every_answer() -> None:
    reported = document("1")
    for path, methods in reported["paths"].items():
        for operation in methods.values():
            answers = operation["responses"]
            assert {"200", "401", "403", "421", "429", "503"} <= answers.keys()
            assert "default" not in answers
            assert answers["200"]["content"]
            assert ("404" in answers) is (
                "{" in path or any(one["name"] in {"run", "after"} for one in operation["parameters"])
            )
            for status in answers.keys() - {"200"}:
                name = answers[status]["$ref"].removeprefix("#/components/responses/")
                assert "application/json" in reported["components"]["responses"][name]["content"]


def test_the_document_names_every_route_and_every_parameter(api: Callable[[str], Any]) -> None:
    reported = api("openapi.json")
    served = {(method.upper(), path) for path, methods in reported["paths"].items() for method in methods}
    assert served == {(one.method, one.path) for one in ENDPOINTS}
    for path, methods in reported["paths"].items():
        for operation in methods.values():
            inside = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert inside == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert operation["summary"].endswith(".")


def test_a_history_that_closes_during_a_request_answers_it_and_refuses_the_next(
    site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_run(site, {"loss": [1.0]})
    resolve = reader.resolve

    def close(*asked: Any) -> str:
        site.history.stop()
        site.history.close()
        return resolve(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "resolve", close)
        assert site.client().get("/api/v1/runs/id-1", headers=site.key).json()["id"] == "id-1", "it is read to its end"
    assert refused(site, "runs/id-1") == (503, "there is no history at the moment: the history is closed")
    HistoryRecorder(place, Bounds(0)).close()  # the lock and the file are free
