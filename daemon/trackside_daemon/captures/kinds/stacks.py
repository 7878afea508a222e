"""Stacks of all threads of ranks, from trackside's client, with and without PyTorch."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from trackside_daemon.captures.kinds.kind import AskRanks, CaptureKind, written
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.text import counted

SILENT = "it does not answer: it is stopped, or a call holds the GIL"


class StackCaptures(CaptureKind):
    """Captures of stacks.

    Args:
        ask: Asks ranks of a run, by its id, a kind of question, and waits for a few seconds at most.
    """

    name = "stacks"
    question: ClassVar[str] = "stacks?"

    def __init__(self, ask: AskRanks) -> None:
        self._ask = ask

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, _cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the answers of ranks as JSON; see `RankRecorder`."""
        _, answers = self._ask(self.question, capture.run, frozenset(ranks))
        outcomes: dict[int, Path | str] = dict.fromkeys(ranks, SILENT)
        for answer in answers:
            path = directory / f"{self.name}_{answer.rank}.json"
            outcomes[answer.rank] = written(path, msgspec.json.encode(self.content(answer.body)))
        return outcomes

    @staticmethod
    def content(body: Any) -> object:
        """Return what is kept of an answer."""
        return body.threads

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the threads of each rank."""
        return {"ranks": {str(rank): {"threads": json.loads(path.read_bytes())} for rank, path in files.items()}}

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return the calls of the main thread of each rank, the innermost last."""
        lines = []
        for rank, stacks in summary["ranks"].items():
            threads = {name: calls for name, calls in stacks["threads"].items() if not name.startswith("trackside")}
            name = next((name for name in threads if name.startswith("MainThread")), next(iter(threads), ""))
            lines += [
                f"rank {rank}: {counted(len(threads), 'thread')}, {name}:",
                *(f"  {call}" for call in threads.get(name, ())),
            ]
        return lines
