"""`trackside checkpoints`: what a run has saved, whether it is intact, and the path to resume from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from trackside_daemon.cli.errors import CommandError, errors_reported, fail, warn
from trackside_daemon.cli.options import Json, StoragePath, Url, argument, flag, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import byte_size, moment, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.cli.sources.api_source import ApiSource

CHOICES = ("latest", "best")
FOUND_BY = "report them by trackside.Checkpoints or run.event('checkpoint', path=…), or set checkpoint.directories"
POLL_SECONDS, AUDIT_SECONDS = 0.5, 3600.0


def checkpoints(
    what: Annotated[
        list[str],
        argument("[latest|best] RUN", "The run. With latest or best, only the path of one checkpoint is printed."),
    ],
    *,
    good: Annotated[bool, flag("--good", "Only one that is intact; what is not audited yet is read now.")] = False,
    metric: Annotated[
        str, option("KEY", "Metric of best. [default: one reported with a checkpoint, else the loss]")
    ] = "",
    highest: Annotated[bool, flag("--max", "The highest value of the metric is the best.")] = False,
    audit: Annotated[bool, flag("--audit", "Have the daemon read all of them again first.")] = False,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the checkpoints of a run, and whether they are intact; or print the path of one, for scripts that resume.

    The exit status is 1 if there is none. A checkpoint is damaged if a file is missing, cut off, or has other content
    than its checksums. Nothing is deleted.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon, find_history
        from trackside_daemon.cli.sources.source import NotFoundError
        from trackside_daemon.questions import table as questions
        from trackside_daemon.questions.artifacts import with_reported

        choice, run = (what[0], what[1]) if len(what) == 2 and what[0] in CHOICES else ("", what[0])
        if what == [run] and run in CHOICES:
            raise CommandError(f"{run}: name a run after it")
        if len(what) > 1 and not choice:
            raise CommandError(f"{' '.join(what)}: give one run, with {' or '.join(CHOICES)} before it")
        if audit:
            _audit(find_daemon(url), run)
        try:
            source = find_history(storage_path, url)
            answer = source.ask(questions.Checkpoints(id=run, metric=metric))
        except NotFoundError as error:
            fail(str(error), 1 if choice else 2)  # before its first start, a run has no checkpoint
        found = answer["checkpoints"]
        if choice == "best" and found and all(one["value"] is None for one in found):
            fail(f"run {shown(run)}: no checkpoint has a value of {shown(answer['metric'])}", 1)
        if choice == "latest" and not url:
            found = with_reported(source.ask, answer)
        if choice:
            _print_one(run, _candidates(found, choice, highest=highest), good=good, here=not url)
        elif as_json:
            print_json(answer)
        elif not found:
            fail(f"run {shown(run)} has no checkpoints that are known; {FOUND_BY}", 1)
        else:
            print_lines(_table(found, answer["metric"]))


def _audit(daemon: ApiSource, run: str) -> None:
    """Wait until the daemon has read all checkpoints of a run."""
    from trackside_daemon.questions.artifacts import Checkpoints

    asked, until = time.time(), time.monotonic() + AUDIT_SECONDS
    daemon.audit(run)
    while time.monotonic() < until:
        found = daemon.ask(Checkpoints(id=run))["checkpoints"]
        if all((one["checked"] or 0) >= asked for one in found if one["state"] in {"complete", "damaged"}):
            return
        time.sleep(POLL_SECONDS)


def _candidates(found: Sequence[dict[str, Any]], choice: str, *, highest: bool) -> list[dict[str, Any]]:
    """Return the checkpoints in the order in which they are wanted."""
    if choice == "latest":
        return list(reversed(found))
    from trackside_daemon.checkpoints.overview import best

    left, ordered = list(found), []
    while (one := best(left, highest=highest)) is not None:
        ordered.append(one)
        left.remove(one)
    return ordered


def _print_one(run: str, candidates: Sequence[Mapping[str, Any]], *, good: bool, here: bool) -> None:
    """Print the path of the first one that can be used, and on standard error why others before it cannot."""
    from trackside_daemon.checkpoints.overview import first_usable

    path, skipped = first_usable(candidates, good=good, here=here)
    for text in skipped:
        warn(text)
    if path:
        print_lines([path], exact=True)
        return
    fail(f"run {shown(run)} has no {'intact ' if good else ''}checkpoint", 1)


def _table(found: Sequence[Mapping[str, Any]], metric: str) -> Iterator[str]:
    rows = []
    for one in found:
        state = one["state"] if one["state"] != "complete" or one["good"] else "complete, not read"
        value = number(one["value"]) if one["value"] is not None else ""
        size = byte_size(one["bytes"]) if one["bytes"] else ""
        texts = (
            number(one["step"]),
            moment(one["time"]),
            state,
            one["format"],
            size,
            value,
            one["path"],
            one["reason"],
        )
        rows.append(tuple(map(shown, texts)))
    header = ("STEP", "WRITTEN", "STATE", "FORMAT", "SIZE", metric.upper() if metric else "", "PATH", "")
    yield from table(tuple(map(shown, header)), rows, right=">   >>", flexible="     ~/~")
