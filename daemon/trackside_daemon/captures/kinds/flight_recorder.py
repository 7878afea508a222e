"""Flight recorders of torch.distributed with the stacks of ranks, from trackside's client: who waits for whom."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trackside.wire import Flight
from trackside_daemon.captures.hang.cases import Absent, RankDump, rank_dump
from trackside_daemon.captures.hang.verdict import verdict
from trackside_daemon.captures.kinds.stacks import StackCaptures
from trackside_daemon.model.text import duration

RANKS = 30  # ranks in the text

_decode = msgspec.json.Decoder(Flight).decode


class FlightRecorder(StackCaptures):
    """Captures of flight recorders."""

    name = "flight_recorder"
    question = "flight?"

    @staticmethod
    def content(body: Any) -> object:
        """Return an answer as it is."""
        return body

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the place of each rank and its collectives that have not ended, and who waits for whom."""
        dumps, failed = {}, {}
        for rank, path in files.items():
            try:
                dumps[rank] = rank_dump(_decode(path.read_bytes()))
            except msgspec.MsgspecError as error:  # numbers of a training that JSON does not have
                failed[str(rank)] = f"{path.name} cannot be read: {error}"
        found = verdict(dumps, Absent()) if any(dump.pending() for dump in dumps.values()) else None
        return {
            "ranks": {str(rank): {"place": dump.place, "waits": _waits(dump)} for rank, dump in dumps.items()},
            "failed": failed,
            "verdict": found and found.text,
        }

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return who waits for whom, then the place and the last collective of each rank."""
        lines = [
            f"rank {rank}: {found['place'] or '-'}{''.join(f'; in {call}' for call in found['waits'][-1:])}"
            for rank, found in summary["ranks"].items()
        ]
        return [*filter(None, [summary["verdict"]]), *lines[:RANKS]]


def _waits(dump: RankDump) -> list[str]:
    return [
        f"{call.operation} number {call.sequence} of {group.title}, for {duration(call.age)}"
        for group in dump.groups.values()
        for call in group.pending()
    ]
