"""A recorder that records nothing real, and captures that use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from processes import DEADLINE

from trackside_daemon.captures.captures import Captures
from trackside_daemon.captures.kinds.flight_recorder import FlightRecorder
from trackside_daemon.captures.kinds.kind import CaptureKind
from trackside_daemon.captures.kinds.stacks import StackCaptures
from trackside_daemon.captures.store import MIB, CaptureStore
from trackside_daemon.history.capture_rows import captures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.captures.kinds.kind import AskRanks
    from trackside_daemon.history.database import Database
    from trackside_daemon.history.record.writer import Writer
    from trackside_daemon.model.capture import Capture, RankAnswer

STEP = {
    "seconds": 0.01,
    "compute": 0.006,
    "overlapped": 0,
    "exposed": 0,
    "copies": 0,
    "data": 0.003,
    "idle": 0.001,
    "other": 0,
}


class ScriptedRecorder(CaptureKind):
    """Captures of profiles: writes the same content for each rank, once it is released.

    Attributes:
        refused: Ranks that it refuses, with reasons.
        failing: Ranks that it fails to record, with reasons.
        content: What a rank's file contains.
        released: Recording ends when it is set.
        began: Set when the first recording began.
    """

    name = "profile"
    contents = "trace"

    def __init__(self) -> None:
        self.refused: dict[int, str] = {}
        self.failing: dict[int, str] = {}
        self.content = "{}"
        self.released = threading.Event()
        self.released.set()
        self.began = threading.Event()

    def refuse(self, _capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Refuse what was scripted."""
        return {rank: self.refused[rank] for rank in ranks if rank in self.refused}

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write a file for each rank."""
        self.began.set()
        while not self.released.wait(0.01) and not cancelled.is_set():
            pass
        outcomes: dict[int, Path | str] = {}
        for rank in ranks:
            path = directory / f"{capture.kind}_{rank}.json"
            path.write_text(self.content)
            outcomes[rank] = self.failing.get(rank, path)
        return outcomes

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return a summary with the shape of that of a profile."""
        profile = {"steps": [STEP], "parts": STEP, "marked": True, "operators": [], "functions": []}
        return {
            "ranks": {str(rank): profile for rank in files},
            "files": {},
            "failed": {},
            "bottleneck": {"class": "data", "share": 0.3, "text": "data: 3 of 10 ms", "rank": min(files)},
        }


def answering(*answers: RankAnswer) -> AskRanks:
    """Return a function that gets the same answers to every question."""

    def ask(
        _kind: str, _run: str, ranks: frozenset[int] | None = None, *_: Any, **__: Any
    ) -> tuple[frozenset[int], Sequence[RankAnswer]]:
        return ranks or frozenset(), answers

    return cast("AskRanks", ask)


class CapturesHarness:
    """Captures over a history.

    Attributes:
        recorder: Records profiles.
        ranks: The connected ranks of every run.
        ends: How its ranks have ended, and with the key None how it has.
        owners: The owners of runs.
        records: All versions of all captures, as published.
    """

    def __init__(self, database: Database, writer: Writer, answers: Sequence[RankAnswer] = ()) -> None:
        self.recorder = ScriptedRecorder()
        self.ranks: tuple[int, ...] = (0, 1)
        self.ends: dict[int | None, str] = {}
        self.owners: dict[str, str] = {}
        self.records: list[Capture] = []
        self._database = database
        self._writer = writer
        self.captures = Captures(
            CaptureStore(database.path.parent, MIB, MIB),
            [self.recorder, StackCaptures(answering(*answers)), FlightRecorder(answering(*answers))],
            lambda _: self.ranks,
            self._publish,
            self.stored,
            ends=lambda *_: self.ends,
            owner=lambda run: self.owners.get(run, ""),
        )

    def _publish(self, batch: Any) -> None:
        self.records.extend(batch.records)
        self._writer.put(list(batch.records))

    def stored(self) -> list[Capture]:
        """Return the captures that the history has."""
        with self._database.reading() as connection:
            return captures(connection)

    def wait(self, id_: str) -> Capture:
        """Return a capture once it has ended and the history has it, if it is stored."""
        thread = self.captures._threads.get(id_)
        if thread is not None:
            thread.join(DEADLINE)
        self._writer.call(lambda _: None).result(DEADLINE)
        return next(capture for capture in [*self.stored(), *self.captures.known()] if capture.id == id_)
