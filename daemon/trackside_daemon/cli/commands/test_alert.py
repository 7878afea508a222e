"""The command test-alert: sends a test notification through each sink."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.alerts.test_alert import TEST_ALERT
from trackside_daemon.cli.commands.gpu import clock
from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Url, option
from trackside_daemon.model.families import alerts
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.cli.sources.api_source import ApiSource

    SinkStates = Mapping[str, Mapping[str, Any]]
    """The state of each sink in `/api/v1/status`, by name."""

WAIT_SECONDS = 30.0  # time limit of a delivery
FIRE_SECONDS = 10.0  # time limit until the alert fires

POLL_SECONDS = 0.1
UNKNOWN = "the sink reports no error; see the daemon's log"
ORDER = {severity: place for place, severity in enumerate(SEVERITIES)}


def raise_test_alert(
    *,
    severity: Annotated[str, option("SEVERITY", "info, warning or critical.")] = "warning",
    run: Annotated[str, option("NAME", "Value of its label run, for routes.")] = "",
    url: Url = "",
) -> None:
    """Raise a test alert, and report whether each sink delivers its notification.

    It appears on the dashboard, in the history and in each sink of alerts.sinks. The exit status is 1 if a sink does
    not deliver it within 30 seconds. What Prometheus and Alertmanager deliver is not checked.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon

        if severity not in SEVERITIES:
            raise CommandError(f"--severity {shown(severity)}: give one of {', '.join(SEVERITIES)}")
        source = find_daemon(url)
        sinks = _sink_states(source)
        begun = time.monotonic()
        alert = _raised(source, source.test_alert({"severity": severity, "run": run}))
        status = delivered(source, alert, sinks, begun) if _is_sent(alert, sinks) else 1
    raise typer.Exit(status)


def _raised(source: ApiSource, test: Mapping[str, Any]) -> dict[str, Any]:
    """Return the alert as soon as the history has it."""
    from trackside_daemon.cli.sources.source import SourceError
    from trackside_daemon.questions.alerts import Alerts

    until = time.monotonic() + FIRE_SECONDS
    while time.monotonic() < until:
        for alert in source.ask(Alerts(run=str(test["run"]), limit=20))["alerts"]:
            if alert["labels"].get("test") == test["test"]:
                return dict(alert)
        time.sleep(POLL_SECONDS)
    raise SourceError(
        f"TestAlert does not fire within {FIRE_SECONDS:.0f} s: alerts.off may contain it; else see the daemon's log", 1
    )


def _is_sent(alert: Mapping[str, Any], sinks: SinkStates) -> bool:
    """Print where to see the alert; return False if a silence mutes it."""
    typer.echo(
        f"TestAlert fires as alert {alert['id']}; for 2 minutes Prometheus can scrape it as "
        f'{alerts.FIRING.name}{{alert="TestAlert"}}'
    )
    if alert["silenced_until"] is not None:
        warn(
            f"a silence mutes it until {clock(alert['silenced_until'])}; find the silence with trackside silence --list, "
            "and end it with --end ID"
        )
        return False
    if not sinks.keys() - {"log"}:
        only = "only logs alerts" if sinks else "sends no notifications"
        typer.echo(f"no sink is configured (alerts.sinks): the daemon itself {only}")
    return True


def delivered(source: ApiSource, alert: Mapping[str, Any], before: SinkStates, begun: float) -> int:
    """Print for each sink when it has delivered the alert, or why not; return the exit status."""
    from trackside_daemon.questions.alerts import Alert

    pending = {name for name, state in before.items() if _accepts(name, state, alert["severity"])}
    status = 0
    while pending:
        late = time.monotonic() - begun
        arrived = source.ask(Alert(number=alert["id"]))["notified"]
        now = _sink_states(source)
        for name in sorted(pending):
            state = now.get(name, {})
            error = shown(state.get("last_error") or UNKNOWN)
            if name in arrived:
                typer.echo(f"{shown(name)}: delivered after {late:.1f} s")
            elif state.get("dropped", 0) > before[name].get("dropped", 0) and not state.get("queued"):
                typer.echo(f"{shown(name)}: not delivered, and not retried: {error}")
                status = 1
            elif late >= WAIT_SECONDS:
                typer.echo(f"{shown(name)}: not delivered within {WAIT_SECONDS:.0f} s: {error}")
                status = 1
            else:
                continue
            pending = pending - {name}
        if pending:
            time.sleep(POLL_SECONDS)
    return status


def _accepts(name: str, state: Mapping[str, Any], severity: str) -> bool:
    """Return whether a sink sends alerts of this severity; if not, print so."""
    least = state.get("severity", "info")
    if TEST_ALERT in state.get("also", ()) or SEVERITIES.index(severity) >= ORDER.get(least, len(SEVERITIES)):
        return True
    typer.echo(f"{shown(name)}: skipped, because its minimum severity is {shown(least)}")
    return False


def _sink_states(source: ApiSource) -> SinkStates:
    return dict(source.status().get("notifications") or {})
