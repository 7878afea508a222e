"""Alerts that are restored from the history: invalid rows must not prevent the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackside_daemon.alerts.rank_restoring import usable
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.service.finding_sources import finding_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

GOOD = Alert("TrainingStalled", "warning", 5.0, "id", {"run": "net", "rank": "3"}, evidence={"since": 4})


@pytest.mark.parametrize(
    ("labels", "evidence", "message"),
    [
        ({"rank": "x"}, {}, "its rank is 'x'"),
        ({"rank": "²"}, {}, "its rank is '²'"),
        ({"rank": "9" * 5000}, {}, "its rank is '999"),
        ({"rank": 3}, {}, "its rank is 3"),
        ({"run": None}, {}, "its run is None"),
        ({}, {"since": "x"}, "its since is 'x'"),
        ({}, {"since": float("nan")}, "its since is nan"),
        ({}, {"occurrences": []}, "its occurrences is []"),
        ({}, {"occurrences": [{"number": 1, "time": "x", "summary": ""}]}, "its occurrences is [{"),
    ],
)
@pytest.mark.parametrize("alert", ["TrainingProcessDied", "RankSilent", "StragglerRank", "TrainingStalled"])
def test_an_invalid_alert_is_dropped_with_one_log_line(
    caplog: pytest.LogCaptureFixture, alert: str, labels: Mapping[str, Any], evidence: Mapping[str, Any], message: str
) -> None:
    fired = usable([Alert(alert, "critical", 5.0, "id", labels, evidence=evidence), GOOD])
    assert fired == [GOOD]
    assert finding_sources(State(), AlertsSection(), fired)
    (line,) = caplog.messages
    assert f"'{alert}' of run 'id', because {message}" in line
    assert len(line) < 300
