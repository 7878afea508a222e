"""Alerts, silences and the test alert over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from histories import opened
from processes import eventually

from trackside_daemon.history.read import alert_reader
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW = 1_700_000_000.0
HOT = Alert("GpuHot", "warning", NOW, labels={"gpu": "3"}, summary="hot", evidence={"temperature": 91})


def ask(site: Any, method: str, path: str, **options: Any) -> tuple[int, Any]:
    answer = site.client().ask(method, f"/api/v1/{path}", headers=site.key, **options)
    return answer.status_code, answer.json()


def refused(site: Any, method: str, path: str, **options: Any) -> tuple[int, str]:
    status, reported = ask(site, method, path, **options)
    return status, reported["error"]["message"]


def test_one_alert_is_returned_with_its_evidence(site: Any, api: Callable[[str], Any]) -> None:
    site.keep(HOT)
    (listed,) = api("alerts")["alerts"]
    assert api(f"alerts/{listed['id']}") == listed
    assert (listed["evidence"], listed["notified"], listed["silenced_until"]) == ({"temperature": 91}, [], None)


def test_a_false_alarm_is_marked_with_a_comment_and_the_mark_is_removed(site: Any, api: Callable[[str], Any]) -> None:
    site.keep(HOT)
    (listed,) = api("alerts")["alerts"]
    path = f"alerts/{listed['id']}"
    assert listed["dismissed"] is None
    status, marked = ask(site, "POST", f"{path}/dismiss", json={"comment": "fans"})
    assert (status, marked["dismissed"]["comment"], marked["evidence"]) == (200, "fans", {"temperature": 91})
    assert marked["dismissed"]["time"] == pytest.approx(time.time(), abs=60)
    assert api("alerts?evidence=false")["alerts"][0]["dismissed"] == api(path)["dismissed"] == marked["dismissed"]
    with site.history.database.reading() as connection:
        assert [dict(one.evidence) for one in alert_reader.firing(connection, NOW)] == [{"temperature": 91}]
    assert ask(site, "POST", f"{path}/dismiss", json={"dismissed": False}) == (200, {**listed, "dismissed": None})
    assert refused(site, "POST", "alerts/99/dismiss")[0] == 404
    assert refused(site, "POST", f"{path}/dismiss", json={"dismissed": 1})[1].startswith(
        'the body must be {"dismissed": true, "comment": TEXT}'
    )


def test_alerts_are_found_by_severity_name_and_whether_they_fire(site: Any, api: Callable[[str], Any]) -> None:
    over = Alert("GpuHot", "info", NOW - 60, labels={"gpu": "0"}, summary="hot", ended=NOW)
    odd = Alert("Odd[1]", "critical", NOW + 1, labels={"gpu": "4"})
    site.keep(over, HOT, odd)

    def found(query: str) -> list[tuple[str, str]]:
        return [(one["alert"], one["severity"]) for one in api(f"alerts?{query}")["alerts"]]

    assert found("") == [("GpuHot", "info"), ("GpuHot", "warning"), ("Odd[1]", "critical")]
    assert found("severity=critical") == [("Odd[1]", "critical")]
    assert found("alert=gpuhot&limit=1") == [("GpuHot", "warning")]  # the newest of those that fit
    assert found("alert=*hot") == [("GpuHot", "info"), ("GpuHot", "warning")]
    assert found("alert=*[1]") == [("Odd[1]", "critical")]
    assert found("alert=Gpu") == []
    assert found("firing=true") == [("GpuHot", "warning"), ("Odd[1]", "critical")]
    assert found("firing=true&severity=info") == []
    assert not {*found("firing=false")} & {*found("firing=true")}
    assert sorted(found("firing=false") + found("firing=true")) == sorted(found(""))


def test_a_list_may_be_without_evidence(site: Any, api: Callable[[str], Any]) -> None:
    site.keep(HOT)
    (whole,) = api("alerts")["alerts"]
    assert whole.pop("evidence") == {"temperature": 91}
    assert api("alerts?evidence=false")["alerts"] == [whole]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("severity=bad", "severity: must be one of info, warning, critical, not 'bad'"),
        ("firing=1", "firing: must be true or false, not '1'"),
        ("evidence=no", "evidence: must be true or false, not 'no'"),
        (f"alert={'*a' * 200}", "alert: longer than 256 characters"),
    ],
)
def test_a_question_about_alerts_without_sense_is_refused(site: Any, query: str, why: str) -> None:
    assert refused(site, "GET", f"alerts?{query}") == (400, why)


def test_an_alert_that_is_not_there_and_an_id_that_is_none_are_refused_in_words(site: Any) -> None:
    assert refused(site, "GET", "alerts/7") == (
        *(404, "alert 7: no such alert; `trackside alerts` and /api/v1/alerts list them with their ids"),
    )
    assert refused(site, "GET", "alerts/x") == (400, "number: 'x' is not a number from 0 to 999999999999999999")
    assert refused(site, "GET", f"alerts/{'9' * 40}")[0] == 400


def test_a_silence_lasts_is_kept_and_names_what_is_silent_now(site: Any, api: Callable[[str], Any]) -> None:
    site.keep(HOT, Alert("GpuLost", "critical", NOW, labels={"gpu": "4"}))
    body = {"labels": {"alert": "Gpu*", "gpu": "3"}, "for": 600, "comment": "fans"}
    status, reported = ask(site, "POST", "silences", json=body)
    made = reported["silence"]
    assert (status, reported["kept"], reported["why"]) == (200, True, "")
    assert (made["labels"], made["comment"], made["until"] - made["started"]) == (body["labels"], "fans", 600)
    assert [one["alert"] for one in reported["firing"]] == ["GpuHot"]
    assert api("silences") == {"silences": [made]}
    ends = {one["alert"]: one["silenced_until"] for one in api("alerts")["alerts"]}
    assert ends == {"GpuHot": made["until"], "GpuLost": None}
    with site.history.database.reading() as connection:
        assert [one.id for one in alert_reader.silences(connection, time.time())] == [made["id"]]


def test_a_silence_of_an_alert_that_never_was_is_refused(site: Any) -> None:
    site.keep(Alert("OldRule", "warning", NOW))
    for name, status in (("LossSpik", 400), ("gpuhot", 400), ("Los*Spike", 200), ("OldRule", 200), ("TestAlert", 200)):
        assert ask(site, "POST", "silences", json={"labels": {"alert": name}})[0] == status
    assert refused(site, "POST", "silences", json={"labels": {"alert": "gpuhot"}}) == (
        *(400, "alert: there is no alert 'gpuhot'; did you mean GpuHot?"),
    )


def test_a_silence_can_be_ended_once_and_the_history_has_that(site: Any, api: Callable[[str], Any]) -> None:
    _, reported = ask(site, "POST", "silences", json={"labels": {}})
    id_ = reported["silence"]["id"]
    status, ended = ask(site, "DELETE", f"silences/{id_}")
    assert (status, ended["kept"]) == (200, True)
    assert ended["silence"]["until"] <= time.time()
    assert api("silences") == {"silences": []}
    assert site.history.silences(time.time()) == []
    assert refused(site, "DELETE", f"silences/{id_}") == (
        *(404, f"silence '{id_}': no active silence has this id; see trackside silence --list"),
    )


def test_a_silence_that_cannot_be_kept_lasts_and_reports_why(site: Any, api: Callable[[str], Any]) -> None:
    site.history.stop()
    _, reported = ask(site, "POST", "silences", json={"labels": {"run": "net"}})
    assert (reported["kept"], reported["why"]) == (False, "the daemon is stopping; the change was not made")
    assert len(api("silences")["silences"]) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Object missing required field `labels`"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"labels": {"alert": 1}}', "Expected `str`, got `int`"),
        (b'{"labels": {"alert": ""}}', "Expected `str` of length >= 1"),
        (b'{"labels": {"a b": "1"}}', "Expected `str` matching regex"),
        (b'{"labels": {}, "for": 0}', "Expected `float` > 0.0"),
        (b'{"labels": {}, "for": 2592001}', "Expected `float` <= 2592000.0"),
        (b'{"labels": {}, "for": null}', "Expected `float`, got `null`"),
        (b'{"labels": {}, "until": 1}', "Object contains unknown field `until`"),
    ],
)
def test_a_silence_without_sense_is_refused(site: Any, body: bytes, why: str) -> None:
    status, message = refused(site, "POST", "silences", content=body)
    assert status == 400
    assert message.startswith('the body must be {"labels": {"alert": PATTERN, "run": PATTERN, …}, "for": SECONDS')
    assert why in message
    assert site.silences.active(time.time()) == []


def test_a_test_alert_is_raised_at_once(site: Any) -> None:
    status, reported = ask(site, "POST", "alerts/test", json={"severity": "critical", "run": "not-there"})
    assert (status, reported["alert"], reported["run"]) == (200, "TestAlert", "")
    assert site.pushed == [Batch("test")]
    (alarm,) = site.trial.accept(Batch("test"))
    assert (alarm.severity, alarm.once, dict(alarm.labels)) == (
        *("critical", True),
        {"run": "not-there", "test": reported["test"]},
    )


def test_a_test_alert_without_sense_or_too_often_is_refused(site: Any) -> None:
    status, message = refused(site, "POST", "alerts/test", json={"severity": "bad"})
    assert (status, message) == (
        400,
        'the body must be {"severity": "warning", "run": "NAME"} (Invalid enum value \'bad\' - at `$.severity`)',
    )
    answers = [ask(site, "POST", "alerts/test")[0] for _ in range(11)]
    assert answers == [200] * 10 + [409]


def test_changes_need_the_token_also_where_reading_is_public(site: Any) -> None:
    client = site.client(public_read=True)
    assert client.get("/api/v1/silences").status_code == 200
    for method, path in (
        ("POST", "alerts/1/dismiss"),
        ("POST", "silences"),
        ("DELETE", "silences/1"),
        ("POST", "alerts/test"),
    ):
        assert client.ask(method, f"/api/v1/{path}", json={"labels": {}}).status_code == 401


HANG = {"kind": "outside", "text": "Rank 0 is at a.py:3 in f.", "ranks": [0], "waiting": [], "busy": []} | {
    "unseen": [],
    "places": {"0": "a.py:3 in f"},
}
SLEEPS = "import time; time.sleep(1000)"
WORKER_COMPUTES = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
RECEIVES = """
import socket, threading, time
here, there = socket.socketpair()
def send():
    while True:
        there.send(b"x")
        time.sleep(0.1)
threading.Thread(target=send, daemon=True).start()
while True:
    here.recv(1)
"""
PDB = [{"rank": 0, "threads": [{"name": "MainThread", "frames": ["/usr/lib/python3.11/pdb.py:3 interaction"]}]}]
ENCODES = [{"rank": 0, "threads": [{"name": "MainThread", "frames": ["/work/encode.py:3 main"]}]}]


@pytest.fixture
def rank_process(request: pytest.FixtureRequest) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", request.param], start_new_session=True)
    waits = psutil.Process(process.pid)
    # An interpreter that starts is busy.
    eventually(lambda: waits.children() if "subprocess" in request.param else waits.status() == psutil.STATUS_SLEEPING)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("rank_process", "change", "evidence", "answer"),
    [
        (SLEEPS, {}, {}, ("a%2Fb", 503)),
        (SLEEPS, {}, {"stacks": ENCODES}, ("id-1", 503)),
        (SLEEPS, {}, {"hang": {**HANG, "busy": [1], "waiting": [1], "pids": {"1": 1}}}, ("a%2Fb", 200)),
        (SLEEPS, {}, {}, ("", 200)),
        (SLEEPS, {}, {}, ("id", 200)),
        (SLEEPS, {"severity": "warning"}, {}, ("a%2Fb", 200)),
        (SLEEPS, {"alert": "RankSilent"}, {}, ("a%2Fb", 200)),
        (SLEEPS, {"ended": NOW + 2}, {}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"hang": None}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"hang": {**HANG, "busy": [0]}}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"hang": {**HANG, "unseen": [1]}}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"hang": {**HANG, "ranks": [0, 1]}}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"stacks": PDB}, ("a%2Fb", 200)),
        (SLEEPS, {}, {"recovered": NOW + 1}, ("a%2Fb", 200)),
        (WORKER_COMPUTES, {}, {}, ("a%2Fb", 200)),
        (RECEIVES, {}, {}, ("a%2Fb", 200)),
    ],
    indirect=["rank_process"],
)
def test_a_run_is_alive_until_its_verdict_is_a_proven_hang(
    site: Any, rank_process: int, change: dict[str, Any], evidence: dict[str, Any], answer: tuple[str, int]
) -> None:
    """All ranks are known here, and no process of them does anything; the name is the whole one."""
    asked, status = answer
    found = {"hang": HANG, **evidence}
    found["hang"] = found["hang"] and {"pids": {"0": rank_process}, **found["hang"]}
    alert = Alert("TrainingStalled", "critical", NOW, "id-1", {"run": "a/b"}, "run a/b stands", evidence=found)
    site.keep([opened("id-1", name="a/b"), replace(alert, **change)])
    live = site.client().get(f"/-/run/{asked}/live")  # nobody has to log in
    assert live.status_code == status
    assert ("run a/b stands: Rank 0 is at a.py:3 in f." in live.text) == (status == 503)
    assert live.headers.get("Trackside-Verdict") == ("hangs" if status == 503 else None)


def test_a_stopped_rank_is_alive(site: Any) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        found = {"hang": {**HANG, "pids": {"0": process.pid}}}
        stall = Alert("TrainingStalled", "critical", NOW, "id-1", {"run": "a/b"}, "run a/b stands", evidence=found)
        site.keep([opened("id-1", name="a/b"), stall])
        assert site.client().get("/-/run/id-1/live").status_code == 200
    finally:
        process.kill()
        process.wait()


def test_a_run_of_which_nothing_is_known_is_alive(site: Any) -> None:
    answer = site.client().get("/-/run/nobody/live")
    assert (answer.status_code, answer.text) == (200, "nothing says that it hangs\n")
    site.history.database.close()  # what cannot be read is no reason to end a run
    assert site.client().get("/-/run/nobody/live").status_code == 200
