"""`trackside silence`, `trackside test-alert` and the silences in `trackside alerts`, with a real daemon."""

from __future__ import annotations

import getpass
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from processes import eventually, run_here

import trackside
from trackside_daemon.cli.commands import test_alert
from trackside_daemon.cli.commands.alerts import _list as listed
from trackside_daemon.cli.commands.silence import amtool
from trackside_daemon.model.troubles import DETECTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import Daemon

    from trackside_daemon.questions.alerts import Alert

UNTIL = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"


def run(daemon: Daemon | str, *arguments: str) -> tuple[int, str, str]:
    """Run a command as the user of a daemon, or with an endpoint where none listens; return its status and output."""
    endpoint = daemon if isinstance(daemon, str) else daemon.endpoint
    environ = {"TRACKSIDE_ENDPOINT": endpoint, "XDG_RUNTIME_DIR": "/nowhere", "COLUMNS": "80"}
    done = run_here(*arguments, environ=environ)
    return done.returncode, done.stdout, done.stderr


def firing(daemon: Daemon) -> dict[str, Any]:
    return {one["alert"]: one for one in daemon.api("alerts").json()["alerts"] if one["ended"] is None}


@pytest.fixture
def troubled(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with a run whose loss is NaN."""
    with trackside.init("net-1", endpoint=daemon.endpoint) as training:
        training.push(step=1, loss=2.5)
        training.push(step=2, loss=float("nan"))
        eventually(lambda: "NonFinite" in firing(daemon))
        yield daemon


def test_a_silence_is_made_listed_shown_and_ended(troubled: Daemon) -> None:
    status, printed, complaints = run(troubled, "silence", "NonFinite", "--run=net-*", "--for=1h30m", "--comment=known")
    assert (status, complaints) == (0, "")
    first, second, _, third = printed.splitlines()
    made = re.fullmatch(rf"silence ([0-9a-f]{{8}}) until {UNTIL}: alert=NonFinite run=net-\*", first)
    assert made is not None
    assert second == "1 firing alert is muted: NonFinite of net-1"
    assert third.startswith(
        "    amtool silence add 'alertname=\"TracksideNonFinite\"' 'run=~\"net-.*\"' --duration=5400s"
    )
    _, printed, _ = run(troubled, "silence", "--list")
    assert re.search(rf"^{made[1]}  {UNTIL}  alert=NonFinite run=net-\*  known$", printed, re.MULTILINE)
    _, printed, _ = run(troubled, "alerts", "--firing")
    assert re.search(r"^ *\d+  NonFinite .* silenced\n  silenced until \d\d-\d\d \d\d:\d\d$", printed, re.MULTILINE)
    assert "RunStarted" not in printed, "an event is no alert"
    assert max(map(len, printed.splitlines())) <= 80
    assert run(troubled, "silence", "--end", made[1]) == (
        *(0, f"silence {made[1]} has ended; the daemon now sends its alerts that still fire\n"),
        "",
    )
    assert run(troubled, "silence", "--list") == (0, "", "trackside: no silences\n")
    assert " silenced " not in run(troubled, "alerts", "--firing")[1]


def test_all_may_be_silenced_on_request_and_json_has_all_of_it(troubled: Daemon) -> None:
    answered = json.loads(run(troubled, "silence", "--all", "--json")[1])
    assert (answered["silence"]["labels"], answered["kept"]) == ({}, True)
    assert {one["alert"] for one in answered["firing"]} == {"NonFinite"}
    listed = json.loads(run(troubled, "silence", "--list", "--json")[1])
    assert listed == {"silences": [answered["silence"]]}


def test_the_name_that_prometheus_has_is_the_same_alert(daemon: Daemon) -> None:
    _, printed, complaints = run(daemon, "silence", "TracksideNonFinite")
    assert ": alert=NonFinite\n" in printed
    assert "'alertname=\"TracksideNonFinite\"'" in printed
    assert complaints == ""


def test_an_alert_that_there_is_not_is_refused_and_a_label_is_doubted(daemon: Daemon) -> None:
    status, _, complaints = run(daemon, "silence", "NonFinite", "--label=rnk=3")
    assert (status, complaints) == (0, "trackside: --label rnk: no alert has this label; did you mean rank?\n")
    assert run(daemon, "silence", "Gpu*", "--label=gpu=3", "--run=a")[2] == ""
    for name, hint in (("NonFinit", "did you mean NonFinite?"), ("Qqqqq*", "docs/alerts.md lists them")):
        assert run(daemon, "silence", name) == (2, "", f"trackside: alert: there is no alert {name!r}; {hint}\n")


def test_names_of_alerts_are_never_cut() -> None:
    one = {
        "id": 1,
        "severity": "warning",
        "run": "r-1",
        "name": "a-run-with-a-long-name-of-its-own",
        "started": 0.0,
        "ended": None,
    }
    found = [{**one, "alert": name, "summary": "it is so " * 20} for name in DETECTED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        lines = list(listed(found, 1e6))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert all(f" {name} " in text for name in DETECTED)


def test_alerts_of_runs_with_one_name_have_the_ids_of_the_runs(daemon: Daemon) -> None:
    for number in (1, 2):
        with trackside.init("net", id=f"torchrun-{number}00", endpoint=daemon.endpoint) as training:
            training.push(step=1, loss=float("nan"))
    eventually(lambda: len(daemon.api("alerts").json()["alerts"]) == 2)
    printed = run(daemon, "alerts")[1]
    assert [name in printed for name in ("net (torchrun-1)", "net (torchrun-2)")] == [True, True], printed


def test_a_silence_of_what_does_not_fire_is_reported(daemon: Daemon) -> None:
    assert "\nno firing alert matches\n" in run(daemon, "silence", "GpuHot", "--label=gpu=3")[1]


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "that would silence every alert; give an alert, a --run or a --label, or --all"),
        (["*"], "that would silence every alert; give an alert, a --run or a --label, or --all"),
        (["GpuHot", "--all"], "--all silences every alert; omit it to silence only those that match"),
        (["GpuHot", "--for=soon"], "--for: 'soon' is not a duration up to 30d, such as 2h or 30m"),
        (["GpuHot", "--for=5"], "--for: '5' is not a duration up to 30d, such as 2h or 30m"),
        (["GpuHot", "--for=31d"], "--for: '31d' is not a duration up to 30d, such as 2h or 30m"),
        (["GpuHot", "--label=gpu"], "--label 'gpu': give NAME=PATTERN, such as rank=3"),
        (["GpuHot", "--label=gpu=1", "--label=gpu=2"], "--label 'gpu=2': gpu is given twice; all patterns must match"),
        (["GpuHot", "--list"], "--list and --end create no silence; give one of them alone"),
    ],
)
def test_what_cannot_be_silenced_is_one_line(arguments: list[str], reported: str) -> None:
    assert run("ipc:///nowhere/push.sock", "silence", *arguments) == (2, "", f"trackside: {reported}\n")


def test_an_id_that_is_not_there_is_one_line(daemon: Daemon) -> None:
    reported = "trackside: silence 'abc/d': no active silence has this id; see trackside silence --list\n"
    assert run(daemon, "silence", "--end=abc/d") == (2, "", reported)


@pytest.mark.parametrize("arguments", [["silence", "GpuHot"], ["silence", "--list"], ["test-alert"]])
def test_without_a_daemon_the_command_reports_it(arguments: list[str]) -> None:
    unused = "http://127.0.0.1:9"
    reported = f"trackside: {unused}: the daemon does not answer: connection refused\n"
    assert run("ipc:///nowhere/push.sock", *arguments, f"--url={unused}") == (1, "", reported)


@pytest.mark.parametrize(
    ("labels", "matchers"),
    [
        ({}, "'alertname=~\"Trackside.*\"'"),
        ({"alert": "GpuHot", "gpu": "?"}, "'alertname=\"TracksideGpuHot\"' 'gpu=~\".\"'"),
        ({"run": "*"}, "'alertname=~\"Trackside.*\"' 'run=~\".+\"'"),
        ({"run": "a.b*"}, "'alertname=~\"Trackside.*\"' 'run=~\"a\\\\.b.*\"'"),
        ({"run": 'it\'s "a"'}, """'alertname=~"Trackside.*"' 'run="it'"'"'s \\"a\\""'"""),
    ],
)
def test_alertmanager_s_silence_has_the_same_in_its_words(labels: dict[str, str], matchers: str) -> None:
    assert amtool(labels, 90, "why not") == f"amtool silence add {matchers} --duration=90s '--comment=why not'"


def test_a_test_alert_fires_on_the_page_and_in_the_history(troubled: Daemon) -> None:
    status, printed, complaints = run(troubled, "test-alert", "--severity=critical", "--run=net-1")
    assert (status, complaints) == (0, "")
    assert re.match(r"TestAlert fires as alert \d+; for 2 minutes Prometheus can scrape it as ", printed)
    kept = firing(troubled)["TestAlert"]
    assert (kept["name"], kept["severity"]) == ("net-1", "critical")
    subject = kept["labels"]["test"]
    assert troubled.series()[
        'trackside_alert_firing{alert="TestAlert",gpu="",k8s_namespace="",key="",partition="",rank="",run="net-1",'
        f'severity="critical",subject="{subject}",tags="",user="{getpass.getuser()}",uuid=""}}'
    ]


def test_a_silenced_test_alert_reports_the_silence(daemon: Daemon) -> None:
    run(daemon, "silence", "TestAlert")
    status, _, complaints = run(daemon, "test-alert")
    assert status == 1
    assert re.match(rf"trackside: a silence mutes it until {UNTIL}; ", complaints)


def test_a_severity_that_is_none_is_one_line() -> None:
    reported = "trackside: --severity bad: give one of info, warning, critical\n"
    assert run("ipc:///nowhere/push.sock", "test-alert", "--severity=bad") == (2, "", reported)


class Sinks:
    """Source whose daemon reports the state of its sinks, for an alert that some of them have delivered."""

    def __init__(self, notified: list[str], standings: dict[str, dict[str, Any]]) -> None:
        self.notified = notified
        self.standings = standings

    def ask(self, question: Alert) -> dict[str, Any]:
        return {"id": question.number, "notified": self.notified}

    def status(self) -> dict[str, Any]:
        return {"notifications": self.standings}


ALERT = {"id": 7, "severity": "warning"}


@pytest.mark.parametrize(
    ("standing", "reported"),
    [
        ({"last_error": "403"}, "webhook: not delivered within 0 s: 403\n"),
        ({"last_error": ""}, "webhook: not delivered within 0 s: the sink reports no error; see the daemon's log\n"),
        ({"last_error": "404", "dropped": 1, "queued": 0}, "webhook: not delivered, and not retried: 404\n"),
    ],
)
def test_each_sink_reports_that_it_has_delivered_or_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], standing: dict[str, Any], reported: str
) -> None:
    monkeypatch.setattr(test_alert, "WAIT_SECONDS", 0.0)
    sinks: Any = Sinks(["log"], {"log": {}, "webhook": standing})
    assert test_alert.delivered(sinks, ALERT, {"log": {}, "webhook": {"dropped": 0}}, time.monotonic()) == 1
    assert capsys.readouterr().out == "log: delivered after 0.0 s\n" + reported


def test_a_sink_that_does_not_notify_of_such_alerts_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = {"critical": "critical", "off": "off", "warning": "warning"}
    before = {name: {"severity": least, "also": ["RunStarted"]} for name, least in quiet.items()}
    before["named"] = {"severity": "critical", "also": ["TestAlert"]}
    sinks: Any = Sinks(["warning", "named"], before)
    assert test_alert.delivered(sinks, ALERT, before, time.monotonic()) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "critical: skipped, because its minimum severity is critical",
        "off: skipped, because its minimum severity is off",
    ]
