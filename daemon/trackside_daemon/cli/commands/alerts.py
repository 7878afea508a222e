"""The commands alerts, alerts show and alerts dismiss: a list of alerts, one with its evidence, and marks of false alarms."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from trackside_daemon.alerts.active_alert import ADDITION, CONCLUSION
from trackside_daemon.cli.commands.runs import STALE, shortened
from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Form, Json, StoragePath, Url, argument, flag, option
from trackside_daemon.cli.output import form_of, print_answer, print_json, print_lines
from trackside_daemon.cli.sources.source import Source
from trackside_daemon.documents.text import table, wrapped
from trackside_daemon.model.text import duration, short_moment, shown
from trackside_daemon.model.troubles import PREFIX

FINGERPRINT = 16  # length of an alert's id in the JSON log, which may have no letters

app = typer.Typer(add_completion=False, rich_markup_mode=None)

OfRun = Annotated[str, option("RUN", "Only alerts of this run.", "--run")]


@app.callback(
    invoke_without_command=True, epilog="\b\nExample: trackside alerts --firing\nExample: trackside alerts show 17"
)
def alerts(
    context: typer.Context,
    *,
    run: OfRun = "",
    firing: Annotated[bool, flag("--firing", "Only firing alerts.")] = False,
    limit: Annotated[int, option("N", "Maximum number of alerts, the newest first; 0 for all.", min=0)] = 50,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List firing and resolved alerts, the newest first, or show one alert."""
    if context.invoked_subcommand is not None:
        with errors_reported():
            if run or firing or as_json or storage_path or url:
                raise CommandError(
                    f"put options after the command: trackside alerts {context.invoked_subcommand} … --run=RUN"
                )
        return
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.questions import table as questions

        source = find_history(storage_path, url)
        found = source.ask(questions.Alerts(run=run))["alerts"]
        newest = [alert for alert in reversed(found) if alert["ended"] is None or not firing]
        newest = newest[: limit or None]
        if not source.live and any(alert["ended"] is None for alert in newest):
            warn(STALE)
        if as_json:
            print_json({"alerts": newest})
        elif newest:
            print_lines(_list(newest, time.time()))
        else:
            fires = "fires" if firing else "fires or has fired"
            of_run = (f" of run {run}", "; ask for an earlier run of the name by its id") if run else ("", "")
            warn(f"no alert{of_run[0]} {fires}{of_run[1]}")


@app.command(epilog="\b\nExample: trackside alerts show TrainingStalled --run gpt-small")
def show(
    alert: Annotated[str, argument("ID|NAME", "An id, an alert_id of the JSON log, or a name: its newest.")],
    *,
    run: OfRun = "",
    form: Form = "text",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Show one alert: its times, its notifications and its evidence."""
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.documents.alert import document

        form = form_of(form, as_json=as_json)
        chosen = _alert(find_history(storage_path, url), alert, run)
        print_answer(chosen, form, lambda: document(chosen, time.time()))


@app.command(epilog="\b\nExample: trackside alerts dismiss 17 --comment 'the schedule changed'")
def dismiss(
    number: Annotated[int, argument("ID", "The alert's id in trackside alerts.", min=1)],
    *,
    comment: Annotated[str, option("TEXT", "Reason.")] = "",
    undo: Annotated[bool, flag("--undo", "Remove the mark.")] = False,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Mark an alert as a false alarm, in the history.

    trackside tune proposes thresholds from these marks. The alert itself fires on; trackside silence mutes it.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history

        if undo and comment:
            raise CommandError("--undo removes the mark with its comment; give one of --undo and --comment")
        chosen = find_history(storage_path, url).dismiss(number, dismissed=not undo, comment=comment)
        if as_json:
            print_json(chosen)
        else:
            what = shown(" of ".join(filter(None, (chosen["alert"], chosen["name"]))))
            mark = "no longer marked" if undo else "marked"
            typer.echo(f"alert {number}, {what}: {mark} as a false alarm")


def _alert(source: Source, text: str, run: str) -> dict[str, Any]:
    """Return the alert with an id or a fingerprint, or the newest with a name."""
    from trackside_daemon.questions.alerts import Alert, Alerts

    if text.isascii() and text.isdecimal() and len(text) < FINGERPRINT:
        return source.ask(Alert(number=int(text)))
    alerts = source.ask(Alerts(run=run))["alerts"]
    named = [alert for alert in alerts if alert.get("fingerprint") == text] or [
        alert for alert in alerts if alert["alert"].lower() == text.removeprefix(PREFIX).lower()
    ]
    if named:
        return dict(named[-1])
    names = ", ".join(dict.fromkeys(alert["alert"] for alert in reversed(alerts)))
    others = f"the alerts are {names}" if names else "there are no alerts yet"
    raise CommandError(f"no alert {text!r}{f' of run {run}' if run else ''}; {others}")


def _names(runs: Mapping[str, str]) -> dict[str, str]:
    """Return the names of runs by their ids; with the beginning of its id if another run has the same name."""
    several = Counter(runs.values())
    ids = shortened(list(runs))
    return {
        run: name if several[name] == 1 else f"{name} ({id_})"
        for (run, name), id_ in zip(runs.items(), ids, strict=True)
    }


def _list(alerts: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """Yield two lines or more per alert, the second with its summary; firing alerts come first."""
    header = ["ID", "ALERT", "SEVERITY", "RUN", "SINCE", "FOR", "STATE"]
    names = _names({alert["run"]: alert["name"] for alert in alerts if alert["run"]})
    ordered = sorted(alerts, key=lambda alert: alert["ended"] is not None)
    rows = [
        [
            str(alert["id"]),
            shown(alert["alert"]),
            shown(alert["severity"]),
            shown(names.get(alert["run"], "-")),
            short_moment(alert["started"], now),
            duration((now if alert["ended"] is None else alert["ended"]) - alert["started"]),
            _state(alert),
        ]
        for alert in ordered
    ]
    first, *lines = table(header, rows, right="><<<<><", flexible="   ~")
    yield first
    for line, alert in zip(lines, ordered, strict=True):
        yield line
        if alert["ended"] is None and (end := alert.get("silenced_until")) is not None:
            yield f"  silenced until {short_moment(end, now)}"
        yield from wrapped(shown(alert["summary"]))
        for name in (CONCLUSION, ADDITION):
            if text := alert.get("evidence", {}).get(name):
                yield from wrapped(shown(text))


def _state(alert: Mapping[str, Any]) -> str:
    if alert.get("dismissed"):
        return "dismissed"
    if alert["ended"] is not None:
        return "resolved"
    return "firing" if alert.get("silenced_until") is None else "silenced"  # older daemons do not send it
