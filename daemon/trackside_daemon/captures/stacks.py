"""Stacks and flight recorders of ranks as captures, from trackside's client: stacks without PyTorch, too."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.model.text import counted

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.captures.recorder import AskRanks
    from trackside_daemon.model.capture import Capture


QUESTIONS = {"stacks": "stacks?", "flight_recorder": "flight?"}  # by kind of capture


class StacksRecorder:
    """A `Recorder` of stacks, and of flight recorders with stacks.

    Args:
        ask: Asks ranks of a run, by its id, a kind of question, and waits for a few seconds at most.
    """

    def __init__(self, ask: AskRanks) -> None:
        self._ask = ask

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Refuse the other kinds of captures; see `Recorder`."""
        return {} if capture.kind in QUESTIONS else dict.fromkeys(ranks, "the client sends stacks alone")

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, _cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the answers of ranks as JSON; see `Recorder`."""
        _, answers = self._ask(QUESTIONS[capture.kind], capture.run, frozenset(ranks))
        outcomes: dict[int, Path | str] = dict.fromkeys(
            ranks, "it does not answer: it is stopped, or a call holds the GIL"
        )
        for answer in answers:
            path = directory / f"{capture.kind}_{answer.rank}.json"
            try:
                path.write_bytes(msgspec.json.encode(answer.body if capture.kind != "stacks" else answer.body.threads))
                outcomes[answer.rank] = path
            except OSError as error:
                outcomes[answer.rank] = f"{path}: {(error.strerror or str(error)).lower()}"
        return outcomes


def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
    """Return the threads of each rank, from compressed files."""
    return {
        "ranks": {
            str(rank): {"threads": json.loads(gzip.decompress(path.read_bytes()))} for rank, path in files.items()
        }
    }


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
