"""The command test-alert: does a notification arrive?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.alarm import SEVERITIES
from trackside_daemon.commands.gpu import Url, clock
from trackside_daemon.commands.runs import WrongError, say, told
from trackside_daemon.commands.table import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.commands.source import ApiSource

WAIT_SECONDS = 30.0
"""A sink that has not delivered by then has failed."""

FIRE_SECONDS = 10.0
"""The daemon has until then to say that the alert fires."""

POLL_SECONDS = 0.1


def trial(
    *,
    severity: Annotated[str, typer.Option(help="info, warning or critical.", metavar="SEVERITY")] = "warning",
    run: Annotated[
        str,
        typer.Option(help="The run that it is about, for routes that look at it.", metavar="NAME", show_default=False),
    ] = "",
    url: Url = "",
) -> None:
    """Raise an alert that says it is a test, and see whether a notification arrives.

    It takes the way of all alerts: the page, the history, and each sink of alerts.sinks. Exit status 1 when one has not
    delivered it in 30 seconds. What comes by Prometheus and Alertmanager this command cannot see: look there.
    """
    with told():
        from trackside_daemon.commands.find import daemon

        if severity not in SEVERITIES:
            raise WrongError(f"--severity {shown(severity)}: an alert is {', '.join(SEVERITIES)}")
        source = daemon(url)
        begun = time.monotonic()
        alert = _raised(source, source.test_alert({"severity": severity, "run": run}))
        status = _delivered(source, alert, begun)
    raise typer.Exit(status)


def _raised(source: ApiSource, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The alert, once the history has it."""
    from trackside_daemon.commands.source import SourceError

    until = time.monotonic() + FIRE_SECONDS
    while time.monotonic() < until:
        for one in source.alerts(str(asked["run"]), limit=20):
            if one["labels"].get("test") == asked["test"]:
                return dict(one)
        time.sleep(POLL_SECONDS)
    raise SourceError(
        f"TestAlert does not fire {FIRE_SECONDS:.0f} s later: alerts.off may have it, or the daemon's log says why", 1
    )


def _delivered(source: ApiSource, alert: Mapping[str, Any], begun: float) -> int:
    """Say of each sink when it has delivered the alert; the exit status."""
    sinks = source.status().get("notifications") or {}
    typer.echo(
        f"TestAlert fires as alert {alert['id']}; Prometheus sees it for 2 minutes as "
        'trackside_alert_firing{alert="TestAlert"}'
    )
    if alert["silenced_until"] is not None:
        say(
            f"a silence has it until {clock(alert['silenced_until'])}, so nobody is told; trackside silence --list has "
            "its id, and --end ID ends it"
        )
        return 1
    if not sinks:
        typer.echo("no sink is set (alerts.sinks), so the daemon itself tells nobody")
        return 0
    waited = set(sinks)
    while waited and time.monotonic() - begun < WAIT_SECONDS:
        for name in sorted(waited.intersection(source.alert(alert["id"])["notified"])):
            typer.echo(f"{shown(name)}: delivered after {time.monotonic() - begun:.1f} s")
            waited.discard(name)
        if waited:
            time.sleep(POLL_SECONDS)
    for name in sorted(waited):
        typer.echo(f"{shown(name)}: {_why(source, name)}")
    return 1 if waited else 0


def _why(source: ApiSource, name: str) -> str:
    standing = (source.status().get("notifications") or {}).get(name) or {}
    error = standing.get("last_error") or "and no error is known; the daemon's log may say more"
    return f"not delivered in {WAIT_SECONDS:.0f} s: {shown(error)}"
