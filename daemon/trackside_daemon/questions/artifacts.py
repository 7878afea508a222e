"""Questions about what runs left besides their samples: captures, checkpoints, output, images, texts and tables."""

from __future__ import annotations

import re
import time
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from trackside.limits import CODE_KEY
from trackside_daemon.questions.question import MissingError, OfRun, Question, RunNames
from trackside_daemon.questions.runs import MOST_EVENTS, Events, Run

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from trackside_daemon.history.media.index import MediaFile
    from trackside_daemon.model.capture import Capture as CaptureRecord
    from trackside_daemon.questions.question import History, Live

MOST_LINES = 10_000  # lines of a command's output in one answer
DIFF_SECONDS = 5.0  # after which code is not compared any further


class Captures(Question, frozen=True, kw_only=True):
    """List the captures of all runs, oldest first, without their summaries."""

    path = "/captures"
    fields = ("captures",)

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        return _captures(history, live)


class RunCaptures(OfRun, frozen=True, kw_only=True):
    """List the captures of a run, oldest first, without their summaries."""

    path = "/runs/{id}/captures"
    fields = ("captures",)

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        return _captures(history, live, self.id)


class Capture(Question, frozen=True, kw_only=True):
    """Return a capture with its summary."""

    path = "/captures/{capture}"
    fields = ("id", "state")
    about = (
        "state is asked, recording, written, summarised or failed. text is the summary in lines. Times in "
        "summary.ranks are seconds per step."
    )
    capture: Annotated[str, Meta(description="A capture's id.")]

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.captures.kinds import by_name
        from trackside_daemon.model.capture import as_json

        found = find_capture(history, live, self.capture)
        return {**as_json(found), "text": by_name.text(found)}


class Checkpoints(OfRun, frozen=True, kw_only=True):
    """List the checkpoints of a run in the order of saving."""

    path = "/runs/{id}/checkpoints"
    fields = ("checkpoints",)
    about = (
        "state is writing, complete, damaged or gone; good: an audit found it intact, at checked. reason says why and "
        "in which file it is damaged. value is that of the metric as reported with the checkpoint, else the last at or"
        " before its step. Without metric, it is the first reported with a checkpoint, else the loss."
    )
    metric: Annotated[str, Meta(description="A pushed key.")] = ""

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.checkpoints.overview import overview

        return overview(connection, self.uid(connection), self.metric)


def with_reported(ask: Callable[[Question], dict[str, Any]], answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the checkpoints of an answer to `Checkpoints`, and what the training has reported meanwhile, the oldest first.

    A daemon that is slow, as on a busy machine, lists a reported one later. Events of several ranks come in the order in which the
    daemon handles them.

    Args:
        ask: Answers the further questions.
        answer: The answer.
    """
    from trackside_daemon.checkpoints.tracked import reported
    from trackside_daemon.model.checkpoint import Checkpoint, as_json, saving_order

    run = answer["run"]
    found = ask(Events(run=run, limit=MOST_EVENTS))["events"]
    events = [one for one in found if one["kind"] == "checkpoint" and isinstance(one["fields"].get("path"), str)]
    relative = any(not one["fields"]["path"].startswith("/") for one in events)
    attempts = ask(Run(id=run, limit=1))["attempt_list"] if relative else []
    directories = {one["attempt"]: one.get("directory") or "" for one in attempts}
    listed = {one["path"]: one for one in answer["checkpoints"]}
    known = dict(listed)
    for event in events:
        saved = reported(event["fields"], event["step"], directories.get(event["attempt"], ""))
        if saved is None:
            continue
        if saved.path not in listed or event["time"] > listed[saved.path]["time"]:
            place = saved.path, event["attempt"], event["time"], "event"
            known[saved.path] = as_json(Checkpoint(run, *place, step=saved.step, sequence=saved.sequence))
        elif event["time"] == listed[saved.path]["time"]:
            known[saved.path] = listed[saved.path]
    # Older daemons list no sequence.
    return sorted(known.values(), key=lambda one: saving_order(one.get("sequence", 0), one["time"], one["step"]))


class Console(OfRun, frozen=True, kw_only=True):
    """Return what the command of a run printed, if trackside run --console started it."""

    path = "/runs/{id}/console"
    fields = ("lines", "total", "more")
    about = (
        "lines are [number, text] without escape sequences, the oldest first: the newest, those before a line number, "
        "or those with a text in any case. With colors, they are [number, text, parts], each part [begin, end, style]:"
        " indices of characters, and a colour, bold, or both. total counts the kept lines, of bytes (at most 10 MiB); "
        "more: there are earlier ones."
    )
    lines: Annotated[int, Meta(le=MOST_LINES, description="At most so many lines.")] = 400
    before: Annotated[int, Meta(le=10**9 - 1, description="Only lines before this number.")] = 0
    search: Annotated[str, Meta(max_length=256, description="Only lines that contain this text.")] = ""
    colors: Annotated[bool, Meta(description="Also the coloured parts of each line.")] = False

    def answer(self, history: History, _live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.history.console import files, lines
        from trackside_daemon.history.read import reader

        with history.reading() as connection:
            launch = reader.launch(connection, self.uid(connection))
        data = files.read(history.path.parent, launch)
        kept = lines.split(data)
        found = lines.select(list(map(lines.plain, kept)), self.lines, self.before, self.search)
        rows = [(*row, lines.colored_parts(kept[row[0] - 1])) for row in found.lines] if self.colors else found.lines
        return {"bytes": len(data), **found._asdict(), "lines": rows}


class Media(OfRun, frozen=True, kw_only=True):
    """List the images, texts and tables of a run, the oldest first."""

    path = "/runs/{id}/media"
    fields = ("media",)
    about = "kind is image, text or table; key is the name that the training code gave it."

    def answer(self, history: History, _live: Live) -> dict[str, Any]:
        """See `Question`."""
        return {"media": self.find(history)[1]}

    def find(self, history: History) -> tuple[str, list[MediaFile]]:
        """Return the id of the run, and its files."""
        from trackside_daemon.history.media import index

        with history.reading() as connection:
            uid = self.uid(connection)
        return uid, index.read(history.path.parent, uid)


class Code(Question, frozen=True, kw_only=True):
    """Return how the code of a run differs from that of another, as stored when their last attempts began."""

    path = "/code"
    fields = ("diff",)
    about = (
        "diff has the lines of a unified diff from the first run to the second; with one run, its code. It is null if "
        "a run has no code. A file too large to store is named alone."
    )
    run: RunNames

    def answer(self, history: History, _live: Live) -> dict[str, Any]:
        """See `Question`."""
        from difflib import unified_diff

        files = [_code(history, run) for run in self.run[:2]]
        if not all(files):
            return {"diff": None}
        before, after = files if len(files) > 1 else ({}, *files)
        lines: list[str] = []
        until = time.monotonic() + DIFF_SECONDS
        for name in dict.fromkeys([*after, *before]):
            if before.get(name) == after.get(name) != LEFT_OUT:
                continue
            if LEFT_OUT in {before.get(name), after.get(name)}:
                lines.append(f"{name}: too large to be stored")
                continue
            old, new = (_Lines(side.get(name, "").splitlines()) for side in (before, after))
            old.until = until
            try:
                lines += unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
            except TimeoutError:
                lines.append(f"{name}: takes too long to be compared")
        return {"diff": lines}


class _Lines(list[str]):
    """Lines whose comparison with others can end, since one of lines that were chosen for it takes hours."""

    until = inf

    def __getitem__(self, place: Any) -> Any:
        if time.monotonic() > self.until:
            raise TimeoutError
        return super().__getitem__(place)


LEFT_OUT = "\0"


def _code(history: History, run: str) -> dict[str, str]:
    """Return the files of the code of a run; empty without any."""
    from trackside_daemon.history.media import index

    uid, items = Media(id=run).find(history)
    item = next((item for item in reversed(items) if item.key == CODE_KEY and item.kind == "text"), None)
    if item is None:
        return {}
    parts = re.split(r"(?m)^===== (.+)\n", index.content(history.path.parent, uid, item).decode(errors="replace"))
    files = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        name.removesuffix(" (left out)"): LEFT_OUT if name.endswith(" (left out)") else text
        for name, text in files.items()
    }


def find_capture(history: History, live: Live, id_: str) -> CaptureRecord:
    """Return the capture with this id.

    Raises:
        MissingError: There is none.
    """
    from trackside_daemon.history import capture_rows

    found = next((capture for capture in live.captures() if capture.id == id_), None)
    if found is None:
        with history.reading() as connection:
            found = capture_rows.capture(connection, id_)
    if found is None:
        raise MissingError(f"capture {id_!r}: there is none")
    return found


def _captures(history: History, live: Live, text: str = "") -> dict[str, Any]:
    """Return the captures of the run that *text* identifies, of all runs if it is empty."""
    from trackside_daemon.history import capture_rows
    from trackside_daemon.history.read import reader
    from trackside_daemon.model.capture import as_json

    with history.reading() as connection:
        run = reader.resolve(connection, text) if text else ""
        merged = {capture.id: capture for capture in capture_rows.captures(connection, run)}
    merged |= {known.id: known for known in live.captures() if run in {"", known.run}}
    return {
        "captures": [
            {**as_json(capture), "summary": {}} for capture in sorted(merged.values(), key=lambda one: one.asked)
        ]
    }
