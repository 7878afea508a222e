"""One id from a job's environment to its own log, the daemon's log, the history, and alerts with their notifications."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from alerts.sinks.alert_records import alert
from end_to_end.conftest import finish
from processes import eventually, run_here

from trackside.environment.process_info import correlation
from trackside_daemon.alerts.sinks.apprise.sink import body
from trackside_daemon.alerts.sinks.group_outbox import annotation_texts
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkMessage
from trackside_daemon.model.records import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

TRAINING = """
import logging, math, sys, trackside
handler = logging.StreamHandler(sys.stdout)
handler.addFilter(trackside.LogFilter())
handler.setFormatter(logging.Formatter("%(correlation_id)s %(run)s %(trackside_run_id)s %(rank)s %(step)s %(message)s"))
log = logging.getLogger("train")
log.addHandler(handler)
log.warning("begins")
run = trackside.init("job", id="job-1")
for step in range(4):
    run.push(step=step, loss=math.nan if step == 3 else 1.0)
    log.warning("trains")
run.finish()
log.warning("ends")
assert trackside.correlation_id() == "pipeline-7"
"""


def test_the_id_of_a_job_is_in_the_history_in_alerts_and_in_the_daemon_s_log(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon("--log.format=json")
    printed = finish(start_training(daemon, "-c", TRAINING, TRACKSIDE_CORRELATION_ID="pipeline-7"))
    fields = "job job-1 0"
    assert printed.splitlines() == [
        "pipeline-7 - - - - begins",
        *(f"pipeline-7 {fields} {step} trains" for step in range(4)),
        "pipeline-7 - - - - ends",
    ]
    entries: list[dict[str, Any]] = eventually(
        lambda: (
            (
                found := [
                    entry
                    for entry in map(json.loads, daemon.log)
                    if entry.get("alert_id") and entry["level"] == "error"
                ]
            )
            and found
        )
    )
    [entry] = entries
    assert entry["msg"].startswith("NonFinite (critical): job: loss: NaN at step 3")
    assert {name: entry[name] for name in ("trackside_run_id", "run", "rank", "correlation_id")} == {
        "trackside_run_id": "job-1",
        "run": "job",
        "rank": "0",
        "correlation_id": "pipeline-7",
    }

    def about(words: str) -> dict[str, Any]:
        """Return the line of the log with these words, which comes soon."""
        return eventually(lambda: next((one for one in map(json.loads, daemon.log) if words in one["msg"]), {}))

    for words in ("begins", "rank 0 finished", "ended: finished"):
        line = about(words)
        assert (line["trackside_run_id"], line["run"], line["correlation_id"]) == ("job-1", "job", "pipeline-7"), words
    assert about("rank 0 finished")["rank"] == "0"
    [text] = [name for name in daemon.series() if name.startswith("trackside_alert_text_info{")]
    assert 'correlation_id="pipeline-7"' in text
    assert daemon.api("runs/job-1").json()["attempt_list"][0]["correlation"] == "pipeline-7"
    [stored] = [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"]
    assert stored["fingerprint"] == entry["alert_id"]
    whole = daemon.api(f"alerts/{stored['id']}").json()
    assert whole["evidence"]["correlation_id"] == "pipeline-7"
    shown = run_here("alerts", "show", entry["alert_id"], f"--storage.path={daemon.history}")
    assert shown.stdout.startswith("alert     NonFinite")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ""),
        ({"TRACEPARENT": "00-0af7-b7ad-01"}, "00-0af7-b7ad-01"),
        ({"traceparent": "00-1-2-01"}, "00-1-2-01"),
        ({"TRACKSIDE_CORRELATION_ID": " a ", "TRACEPARENT": "b"}, "a"),
        ({"TRACKSIDE_CORRELATION_ID": " ", "TRACEPARENT": "b"}, "b"),
    ],
)
def test_where_the_id_comes_from(environ: dict[str, str], found: str) -> None:
    assert correlation(environ) == found


def test_notifications_name_the_id() -> None:
    daemon = DaemonInfo("node7")
    one = alert("NonFinite", evidence={"correlation_id": "pipeline-7"})
    assert annotation_texts(one, daemon)["correlation_id"] == "pipeline-7"
    assert "correlation id pipeline-7" in body(SinkMessage("", (one,)), daemon)
    assert "correlation_id" not in annotation_texts(alert("NonFinite"), daemon)


def test_an_alert_retains_its_fingerprint() -> None:
    first = alert("NonFinite", severity="critical")
    assert first.fingerprint == fingerprint(
        first.alert, first.run, dict(reversed(list(first.labels.items()))), first.started
    )
    assert len(first.fingerprint) == 16
