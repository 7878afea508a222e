"""The command silence: people are not told of some alerts for a while."""

from __future__ import annotations

import difflib
import json
import shlex
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.alerts.descriptions import PREFIX
from trackside_daemon.alerts.silences import LONGEST
from trackside_daemon.cli.commands.gpu import Url, clock
from trackside_daemon.cli.commands.runs import Json, WrongError, print_lines, say, told
from trackside_daemon.cli.commands.table import table
from trackside_daemon.model.setting_types import seconds
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

MORE = ("stage", "test")
"""Labels of alerts that are not found by a family."""

NAMED = 5
"""So many of the alerts that are silent now are named."""


def silence(
    alert: Annotated[
        str, typer.Argument(metavar="ALERT", help="An alert's name, or a pattern with * and ?.", show_default=False)
    ] = "",
    *,
    run: Annotated[str, typer.Option(help="Only of runs that are called so, with * and ?.", metavar="PATTERN")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Only those whose label fits, such as rank=3; may be repeated.",
            metavar="NAME=PATTERN",
            show_default=False,
        ),
    ] = None,
    length: Annotated[str, typer.Option("--for", help="For so long, 30d at most.", metavar="TIME")] = "2h",
    comment: Annotated[str, typer.Option(help="Why.", metavar="TEXT", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help="All alerts.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the silences that last.")] = False,
    end: Annotated[str, typer.Option(help="End the silence of this id.", metavar="ID", show_default=False)] = "",
    as_json: Json = False,
    url: Url = "",
) -> None:
    """Have the daemon tell nobody of some alerts for a while.

    They fire all the same, on the page and in the history; what fires still when the silence ends is told then, if it has
    not been before. All patterns have to fit, and a label that an alert does not have fits none; an alert of several ranks has the first's.

    Of what fires already, an Alertmanager behind Prometheus says that it is resolved: to have no such message, silence it
    there, by the amtool command that is printed.
    """
    with told():
        labels = _labels(alert.removeprefix(PREFIX), run, label or [])
        if (list_ or end) and (labels or everything or (list_ and end)):
            raise WrongError("--list and --end go alone: they make no silence")
        if list_:
            _show(url, as_json=as_json)
        elif end:
            _end(url, end, as_json=as_json)
        else:
            body = _asked(labels, length, comment, everything=everything)
            _add(url, body, as_json=as_json)


def _labels(alert: str, run: str, given: Sequence[str]) -> dict[str, str]:
    labels = {name: pattern for name, pattern in (("alert", alert), ("run", run)) if pattern}
    for one in given:
        name, equals, pattern = one.partition("=")
        if not (equals and name.isidentifier() and name.isascii() and pattern):
            raise WrongError(f"--label {one!r}: a label is NAME=PATTERN, such as rank=3")
        if name in labels:
            raise WrongError(f"--label {one!r}: {name} is said twice; all patterns have to fit")
        labels[name] = pattern
    return labels


def _asked(labels: Mapping[str, str], length: str, comment: str, *, everything: bool) -> dict[str, Any]:
    """What the daemon is asked for."""
    if everything and labels:
        raise WrongError("--all is all alerts; leave it out to silence only those that fit")
    if not everything and not any(name != "alert" or pattern.strip("*") for name, pattern in labels.items()):
        raise WrongError("that would silence everything; name an alert, a --run or a --label, or say --all")
    try:
        lasts = float(str(seconds(length)))
    except ValueError:
        lasts = 0.0
    if not 0 < lasts <= LONGEST:
        raise WrongError(f"--for: {length!r} is not a duration such as 2h or 30m, of 30d at most")
    return {"labels": labels, "for": lasts, "comment": comment}


def _add(url: str, body: Mapping[str, Any], *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import daemon

    source = daemon(url)
    answer = source.silence(body)
    _doubt(body["labels"], {one["alert"] for one in source.alerts("")})
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    made = answer["silence"]
    typer.echo(f"silence {made['id']} until {clock(made['until'])}: {_what(made['labels'])}")
    typer.echo(_silent(answer["firing"]))
    typer.echo(
        "what Prometheus itself evaluates (thresholds, rules of your own) is silenced in Alertmanager:\n"
        f"    {amtool(made['labels'], body['for'], made['comment'])}"
    )
    _warn(answer)


def _doubt(labels: Mapping[str, str], fired: Collection[str]) -> None:
    """Say of an alert and of labels that there are none like them; what has *fired* is one, too."""
    from trackside_daemon.alerts.descriptions import DETECTED, RULED
    from trackside_daemon.service.watchers import families

    alerts = sorted({*DETECTED, *RULED, *fired})
    if not any(fnmatchcase(one, labels.get("alert", "*")) for one in alerts):
        near = _near(labels["alert"], alerts) or "a rule of your own is one once it has fired"
        say(f"{shown(labels['alert'])}: no alert that is known here is called so; {near}")
    names = sorted({"alert", *MORE, *(name for one in families().values() for name in one.labels)})
    for name in labels:
        if name not in names:
            say(f"--label {name}: no alert has this label; {_near(name, names) or 'most have run, rank, key or gpu'}")


def _near(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"did you mean {found[0]}?" if found else ""


def _end(url: str, id_: str, *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import daemon

    answer = daemon(url).unsilence(id_)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    typer.echo(f"silence {shown(answer['silence']['id'])} is ended; what fires of it is told now")
    _warn(answer)


def _show(url: str, *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import daemon

    found = daemon(url).silences()
    if as_json:
        typer.echo(json.dumps({"silences": found}, indent=2))
    elif found:
        print_lines(_list(found))
    else:
        say("nothing is silenced")


def _list(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [shown(one["id"]), clock(one["until"]), _what(one["labels"]), shown(one["comment"] or "-")] for one in found
    ]
    return table(["ID", "UNTIL", "ALERTS", "COMMENT"], rows, flexible="  ~~")


def _what(labels: Mapping[str, str]) -> str:
    return " ".join(f"{shown(name)}={shown(pattern)}" for name, pattern in labels.items()) or "all alerts"


def _silent(firing: Sequence[Mapping[str, Any]]) -> str:
    """What fires now and is not told."""
    if not firing:
        return "nothing that fires now fits"
    names = [shown(" of ".join(filter(None, (one["alert"], one["labels"].get("run"))))) for one in firing]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    count = "1 firing alert is" if len(names) == 1 else f"{len(names)} firing alerts are"
    return f"{count} silent now: {', '.join(names[:NAMED])}{more}"


def _warn(answer: Mapping[str, Any]) -> None:
    if not answer["kept"]:
        say(f"it holds now, but not after a restart of the daemon: {answer['why']}")


def amtool(labels: Mapping[str, str], lasts: float, comment: str) -> str:
    """The command by which Alertmanager has the same silence: its names have a prefix, its patterns are expressions."""
    matchers = {"alertname": PREFIX + labels.get("alert", "*")}
    matchers |= {name: pattern for name, pattern in labels.items() if name != "alert"}
    words = [_matcher(name, pattern) for name, pattern in matchers.items()]
    said = [
        "amtool",
        "silence",
        "add",
        *words,
        f"--duration={lasts:.0f}s",
        f"--comment={comment or 'trackside silence'}",
    ]
    return " ".join(shlex.quote(shown(word)) for word in said)


def _matcher(name: str, pattern: str) -> str:
    """A label in Alertmanager's words; ``+`` for a star alone, since a missing label is an empty one there."""
    if not set("*?") & set(pattern):
        return f"{name}={_quoted(pattern)}"
    if not pattern.strip("*"):
        return f'{name}=~".+"'
    return f"{name}=~{_quoted(''.join({'*': '.*', '?': '.'}.get(one, _literal(one)) for one in pattern))}"


def _literal(letter: str) -> str:
    return f"\\{letter}" if letter in r"\.+()[]{}|^$" else letter


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
