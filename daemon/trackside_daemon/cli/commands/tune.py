"""The command tune: proposes thresholds from the user's own runs and the alerts that were marked as false alarms."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Json, StoragePath, Url, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.detectors.key_roles import KeyRoles
    from trackside_daemon.detectors.what_if import Judged, Proposal, StoredAlerts


def tune(
    *,
    runs: Annotated[int, option("N", "Maximum number of runs to replay for each alert, the newest first.", min=1)] = 20,
    config_file: Annotated[Path | None, option("FILE", "YAML file of the daemon's settings.", "--config.file")] = None,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Propose thresholds with which your false alarms would not have fired, and show what else they silence.

    Mark false alarms with trackside alerts dismiss ID, or on their pages. For each such alert, the command replays
    the runs in which it fired, with one threshold changed at a time. It changes nothing itself.
    """
    with errors_reported():
        from trackside_daemon.alerts.settings import key_roles
        from trackside_daemon.cli.commands.replay import section_of
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.detectors.rank_detectors import ALERTS
        from trackside_daemon.detectors.what_if import propose
        from trackside_daemon.questions.alerts import Alerts

        source = find_history(storage_path, url)
        section = section_of(config_file)
        alerts = source.ask(Alerts())["alerts"]
        marked = [alert for alert in alerts if alert.get("dismissed")]
        if not marked:
            raise CommandError("no alert is marked as a false alarm; mark one with trackside alerts dismiss ID")
        names = sorted({alert["alert"] for alert in marked})
        _warn_of_others([name for name in names if name not in ALERTS])
        found = [
            propose(
                name,
                _cases(source, [one for one in alerts if one["alert"] == name], runs, key_roles(section)),
                section.thresholds,
            )
            for name in names
            if name in ALERTS
        ]
        if as_json:
            print_json({"proposals": [_fields(proposal) for proposal in found]})
        else:
            print_lines(_report(found, {alert["id"]: alert for alert in alerts}))


def _warn_of_others(names: Sequence[str]) -> None:
    if names:
        warn(
            f"{', '.join(map(shown, names))}: no detector of pushed values; set the thresholds of such alerts yourself"
        )


def _cases(source: Source, alerts: Sequence[Mapping[str, Any]], most: int, roles: KeyRoles) -> list[StoredAlerts]:
    """Return the runs in which an alert fired, those with false alarms and the newest first."""
    from trackside_daemon.cli.commands.replay import pushed_of_run
    from trackside_daemon.detectors.what_if import RecordedPushes, StoredAlerts

    of_run: dict[str, list[Mapping[str, Any]]] = {}
    for alert in reversed(alerts):
        if alert["run"]:
            of_run.setdefault(alert["run"], []).append(alert)
    ordered = sorted(of_run.items(), key=lambda item: not any(alert.get("dismissed") for alert in item[1]))
    cases = []
    for uid, fired in ordered[:most]:
        try:
            pushed = pushed_of_run(source, uid)
        except CommandError as error:
            warn(f"{error}; it is left out")
            continue
        judged = [_judged(alert) for alert in fired]
        recording = RecordedPushes(
            pushed.rows, lost=pushed.lost, ranks={one.rank for one in judged}, roles=roles.of_run(pushed.roles)
        )
        cases.append(StoredAlerts(pushed.run, recording, judged))
    return cases


def _judged(alert: Mapping[str, Any]) -> Judged:
    from trackside_daemon.detectors.what_if import Judged

    ended = inf if alert["ended"] is None else alert["ended"]
    labels = alert["labels"]
    rank = int(labels.get("rank", 0))
    return Judged(alert["id"], labels.get("key", ""), rank, alert["started"], ended, bool(alert.get("dismissed")))


def _fields(proposal: Proposal) -> dict[str, Any]:
    fields = proposal._asdict()
    return fields | {name: sorted(fields[name]) for name in ("before", "after", "false")}


def _report(found: Sequence[Proposal], alerts: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    header = ["ALERT", "SETTING", "VALUE", "PROPOSED", "FALSE ALARMS", "OTHERS"]
    rows = [
        [
            one.alert,
            one.setting or "-",
            number(one.value) if one.setting else "-",
            number(one.proposed) if one.setting else "-",
            f"{len(one.before & one.false)} to {len(one.after & one.false)}",
            f"{len(one.before - one.false)} to {len(one.after - one.false)}",
        ]
        for one in found
    ]
    if rows:
        yield from table(header, rows, right="<<>>>>", flexible="      ")
    for one in found:
        yield from _silenced(one, alerts)
    settings = ", ".join(f"{one.setting}: {one.proposed:g}" for one in found if one.setting)
    if settings:
        yield ""
        yield "alerts:"
        yield f"  thresholds: {{{settings}}}"


def _silenced(one: Proposal, alerts: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per alert that no longer fires, and one about false alarms that remain or cannot be replayed."""
    for number_ in sorted(one.before - one.after):
        alert = alerts[number_]
        kind = "a false alarm" if number_ in one.false else "not marked as a false alarm"
        yield f"  no longer: {number_} {one.alert} of {shown(alert['name'])}, {kind}"
    if lost := one.false - one.before:
        yield f"  not replayed, or silent already with these settings: {', '.join(map(str, sorted(lost)))}"
    if one.before & one.after & one.false:
        names = sorted({shown(alerts[id_]["name"]) for id_ in one.before & one.false})
        off = ", ".join(f'"{one.alert}@{name}"' for name in names)
        yield f"  no threshold alone silences {one.alert}; to turn it off for these runs: alerts.off: [{off}]"
