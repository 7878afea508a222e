"""A real training fails: the page, the API and the log show it."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from processes import Daemon, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

FIRES = (
    'trackside_alert_firing{{alert="NonFinite",gpu="",k8s_namespace="",key="loss",partition="",rank="0",run="{run}",'
    'severity="critical",subject="",tags="",user="{user}",uuid=""}}'
)


def firing(daemon: Daemon, run: str) -> float | None:
    return daemon.series().get(FIRES.format(run=run, user=getpass.getuser()))


def test_a_nan_is_on_the_page_in_the_history_and_in_the_log_unless_its_alert_is_off(
    start_daemon: Callable[..., Daemon],
) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__OFF": "NonFinite@qui*"})
    for name in ("quiet", "trouble"):
        with trackside.init(name, id=f"{name}-1", endpoint=daemon.endpoint) as run:
            run.push(step=1, loss=2.5)
            run.push(step=2, loss=float("nan"))
            if name == "trouble":
                eventually(lambda: firing(daemon, "trouble") == 1)
                (kept,) = [one for one in daemon.api("alerts").json()["alerts"] if one["severity"] != "info"]
    assert firing(daemon, "quiet") is None
    assert (kept["run"], kept["name"], kept["alert"], kept["severity"], kept["ended"]) == (
        *("trouble-1", "trouble", "NonFinite", "critical"),
        None,
    )
    assert kept["labels"] == {"key": "loss", "rank": "0", "run": "trouble", "user": getpass.getuser()}
    assert kept["summary"] == "trouble: loss: NaN at step 2; the last finite value was 2.5"
    assert "checkpoint" in kept["description"]
    assert [line for line in daemon.log if "NonFinite" in line and "level=error" in line]
