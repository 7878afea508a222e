"""The command test-alert: does a notification arrive?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.alerts.test_alert import TEST_ALERT
from trackside_daemon.cli.commands.gpu import Url, clock
from trackside_daemon.cli.commands.runs import WrongError, say, told
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.cli.sources.source import ApiSource

    Standings = Mapping[str, Mapping[str, Any]]
    """How each sink is, by its name, as `/api/v1/status` has it."""

WAIT_SECONDS = 30.0
"""A sink that has not delivered by then has failed."""

FIRE_SECONDS = 10.0
"""The daemon has until then to say that the alert fires."""

POLL_SECONDS = 0.1
UNKNOWN = "no error is known; the daemon's log may say more"
ORDER = {severity: place for place, severity in enumerate(SEVERITIES)}


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
        from trackside_daemon.cli.sources.daemon_lookup import daemon

        if severity not in SEVERITIES:
            raise WrongError(f"--severity {shown(severity)}: an alert is {', '.join(SEVERITIES)}")
        source = daemon(url)
        sinks = _standings(source)
        begun = time.monotonic()
        alert = _raised(source, source.test_alert({"severity": severity, "run": run}))
        status = delivered(source, alert, sinks, begun) if _is_told(alert, sinks) else 1
    raise typer.Exit(status)


def _raised(source: ApiSource, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The alert, once the history has it."""
    from trackside_daemon.cli.sources.errors import SourceError

    until = time.monotonic() + FIRE_SECONDS
    while time.monotonic() < until:
        for one in source.alerts(str(asked["run"]), limit=20):
            if one["labels"].get("test") == asked["test"]:
                return dict(one)
        time.sleep(POLL_SECONDS)
    raise SourceError(
        f"TestAlert does not fire {FIRE_SECONDS:.0f} s later: alerts.off may have it, or the daemon's log says why", 1
    )


def _is_told(alert: Mapping[str, Any], sinks: Standings) -> bool:
    """Say where it is to be seen; whether no silence has it."""
    typer.echo(
        f"TestAlert fires as alert {alert['id']}; Prometheus sees it for 2 minutes as "
        'trackside_alert_firing{alert="TestAlert"}'
    )
    if alert["silenced_until"] is not None:
        say(
            f"a silence has it until {clock(alert['silenced_until'])}, so nobody is told; trackside silence --list has "
            "its id, and --end ID ends it"
        )
        return False
    if not sinks.keys() - {"log"}:
        typer.echo("no sink is set (alerts.sinks): the daemon itself tells nobody" + (" but its log" if sinks else ""))
    return True


def delivered(source: ApiSource, alert: Mapping[str, Any], before: Standings, begun: float) -> int:
    """Say of each sink when it has delivered the alert, or why not; the exit status."""
    waited = {name for name, of in before.items() if _takes(name, of, alert["severity"])}
    status = 0
    while waited:
        late = time.monotonic() - begun
        arrived, now = source.alert(alert["id"])["notified"], _standings(source)
        for name in sorted(waited):
            of = now.get(name, {})
            error = shown(of.get("last_error") or UNKNOWN)
            if name in arrived:
                typer.echo(f"{shown(name)}: delivered after {late:.1f} s")
            elif of.get("dropped", 0) > before[name].get("dropped", 0) and not of.get("queued"):
                typer.echo(f"{shown(name)}: not delivered, and given up: {error}")
                status = 1
            elif late >= WAIT_SECONDS:
                typer.echo(f"{shown(name)}: not delivered in {WAIT_SECONDS:.0f} s: {error}")
                status = 1
            else:
                continue
            waited = waited - {name}
        if waited:
            time.sleep(POLL_SECONDS)
    return status


def _takes(name: str, standing: Mapping[str, Any], severity: str) -> bool:
    """Whether a sink tells of such an alert, as far as it says; if not, that is said."""
    least = standing.get("severity", "info")
    if TEST_ALERT in standing.get("also", ()) or SEVERITIES.index(severity) >= ORDER.get(least, len(SEVERITIES)):
        return True
    typer.echo(f"{shown(name)}: not told: its severity is {shown(least)}")
    return False


def _standings(source: ApiSource) -> Standings:
    return dict(source.status().get("notifications") or {})
