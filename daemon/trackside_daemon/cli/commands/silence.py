"""The command silence: mutes alerts for a while."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from trackside_daemon.alerts.silences import MAX_SILENCE_SECONDS
from trackside_daemon.cli.commands.gpu import clock
from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Json, Url, argument, flag, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.config.near import near_name
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import duration_seconds, shown, some
from trackside_daemon.model.troubles import PREFIX

MORE = ("stage", "test")  # labels of alerts that no family has
NAMED = 5  # maximum number of muted alerts to list


def silence(
    alert: Annotated[str, argument("ALERT", "Name of an alert, or a pattern with * and ?.")] = "",
    *,
    run: Annotated[str, option("PATTERN", "Only alerts of runs with this name, with * and ?.")] = "",
    label: Annotated[
        list[str] | None, option("NAME=PATTERN", "Only alerts whose label matches, such as rank=3; may be repeated.")
    ] = None,
    length: Annotated[str, option("TIME", "Duration, at most 30d.", "--for")] = "2h",
    comment: Annotated[str, option("TEXT", "Reason.")] = "",
    everything: Annotated[bool, flag("--all", "Silence all alerts.")] = False,
    list_: Annotated[bool, flag("--list", "List the current silences.")] = False,
    end: Annotated[str, option("ID", "End the silence with this id.")] = "",
    as_json: Json = False,
    url: Url = "",
) -> None:
    """Mute alerts for a while: the daemon sends no notifications of them.

    They still fire on the dashboard and in the history. When the silence ends, the daemon sends those that still fire
    and were not sent before. All patterns must match. A pattern for a label that an alert lacks never matches; an
    alert of several ranks has the label of the first.

    An Alertmanager behind Prometheus reports already firing alerts as resolved. To avoid that, create the silence
    there, with the amtool command that this command prints.
    """
    with errors_reported():
        labels = _labels(alert.removeprefix(PREFIX), run, label or [])
        if (list_ or end) and (labels or everything or (list_ and end)):
            raise CommandError("--list and --end create no silence; give one of them alone")
        if list_:
            _show(url, as_json=as_json)
        elif end:
            _end(url, end, as_json=as_json)
        else:
            body = _body(labels, length, comment, everything=everything)
            _add(url, body, as_json=as_json)


def _labels(alert: str, run: str, given: Sequence[str]) -> dict[str, str]:
    labels = {name: pattern for name, pattern in (("alert", alert), ("run", run)) if pattern}
    for text in given:
        name, equals, pattern = text.partition("=")
        if not (equals and name.isidentifier() and name.isascii() and pattern):
            raise CommandError(f"--label {text!r}: give NAME=PATTERN, such as rank=3")
        if name in labels:
            raise CommandError(f"--label {text!r}: {name} is given twice; all patterns must match")
        labels[name] = pattern
    return labels


def _body(labels: Mapping[str, str], length: str, comment: str, *, everything: bool) -> dict[str, Any]:
    """Return the body of the request."""
    if everything and labels:
        raise CommandError("--all silences every alert; omit it to silence only those that match")
    if not everything and not any(name != "alert" or pattern.strip("*") for name, pattern in labels.items()):
        raise CommandError("that would silence every alert; give an alert, a --run or a --label, or --all")
    length_seconds = duration_seconds(length, bare=False)
    if not 0 < length_seconds <= MAX_SILENCE_SECONDS:
        raise CommandError(f"--for: {length!r} is not a duration up to 30d, such as 2h or 30m")
    return {"labels": labels, "for": length_seconds, "comment": comment}


def _add(url: str, body: Mapping[str, Any], *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon

    source = find_daemon(url)
    answer = source.silence(body)
    _warn_of_unknown(body["labels"])
    if as_json:
        print_json(answer)
        return
    made = answer["silence"]
    typer.echo(f"silence {shown(made['id'])} until {clock(made['until'])}: {_matchers(made['labels'])}")
    typer.echo(_muted(answer["firing"]))
    typer.echo(
        "alerts that Prometheus evaluates (thresholds, custom rules) need a silence in Alertmanager:\n"
        f"    {amtool(made['labels'], body['for'], made['comment'])}"
    )
    _warn_if_unstored(answer)


def _warn_of_unknown(labels: Mapping[str, str]) -> None:
    """Warn of labels that no alert has."""
    from trackside_daemon.model.families.catalogue import catalogue

    names = sorted({"alert", *MORE, *(name for family in catalogue().values() for name in family.labels)})
    for name in labels:
        if name not in names:
            hint = near_name(name, names, "common labels are run, rank, key and gpu")
            warn(f"--label {name}: no alert has this label{hint}")


def _end(url: str, id_: str, *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon

    answer = find_daemon(url).unsilence(id_)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"silence {shown(answer['silence']['id'])} has ended; the daemon now sends its alerts that still fire")
    _warn_if_unstored(answer)


def _show(url: str, *, as_json: bool) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon
    from trackside_daemon.questions.alerts import Silences

    silences = find_daemon(url).ask(Silences())["silences"]
    if as_json:
        print_json({"silences": silences})
    elif silences:
        print_lines(_list(silences))
    else:
        warn("no silences")


def _list(silences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [shown(silence["id"]), clock(silence["until"]), _matchers(silence["labels"]), shown(silence["comment"] or "-")]
        for silence in silences
    ]
    return table(["ID", "UNTIL", "ALERTS", "COMMENT"], rows, flexible="  ~~")


def _matchers(labels: Mapping[str, str]) -> str:
    return " ".join(f"{shown(name)}={shown(pattern)}" for name, pattern in labels.items()) or "all alerts"


def _muted(firing: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about the firing alerts that the silence mutes."""
    if not firing:
        return "no firing alert matches"
    names = [shown(" of ".join(filter(None, (alert["alert"], alert["labels"].get("run"))))) for alert in firing]
    count = "1 firing alert is" if len(names) == 1 else f"{len(names)} firing alerts are"
    return f"{count} muted: {some(names, NAMED)}"


def _warn_if_unstored(answer: Mapping[str, Any]) -> None:
    if not answer["kept"]:
        warn(f"this is in effect now, but ends when the daemon restarts: {answer['why']}")


def amtool(labels: Mapping[str, str], length: float, comment: str) -> str:
    """Return the command for the same silence in Alertmanager, where names have a prefix and patterns are regular expressions."""
    matchers = {"alertname": PREFIX + labels.get("alert", "*")}
    matchers |= {name: pattern for name, pattern in labels.items() if name != "alert"}
    words = [_matcher(name, pattern) for name, pattern in matchers.items()]
    command = [
        "amtool",
        "silence",
        "add",
        *words,
        f"--duration={length:.0f}s",
        f"--comment={comment or 'trackside silence'}",
    ]
    return " ".join(shlex.quote(shown(word)) for word in command)


def _matcher(name: str, pattern: str) -> str:
    """Return a matcher of Alertmanager; ``*`` alone becomes ``.+``, because a missing label is an empty one there."""
    if not set("*?") & set(pattern):
        return f"{name}={_quoted(pattern)}"
    if not pattern.strip("*"):
        return f'{name}=~".+"'
    return f"{name}=~{_quoted(''.join({'*': '.*', '?': '.'}.get(letter, _literal(letter)) for letter in pattern))}"


def _literal(letter: str) -> str:
    return f"\\{letter}" if letter in r"\.+()[]{}|^$" else letter


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
