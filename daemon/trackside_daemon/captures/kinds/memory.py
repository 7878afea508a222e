"""Memory of ranks as captures: the largest allocations, by trackside's client, and the mappings of the process."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trackside.wire import MemorySnapshot
from trackside_daemon.captures.kinds.kind import AskRanks, CaptureKind, written
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.text import byte_size

ROWS = 40  # sites and mappings that a summary keeps of each
SHOWN = 5  # likewise its text
RELEVANT = 1 << 20  # bytes of growth that are reported
ANSWER_SECONDS = 15.0

_MAPPING = re.compile(rb"[0-9a-f]+-[0-9a-f]+ ")
_LIBRARY = re.compile(r"/(?:site-packages|lib/python3[^/]*)/")


class RankMemory(msgspec.Struct):
    """The file of a rank: what its client sent, and the bytes of its mappings by name."""

    snapshot: MemorySnapshot
    mappings: dict[str, int]


_decode = msgspec.json.Decoder(RankMemory).decode


class MemoryCaptures(CaptureKind):
    """Captures of memory.

    Args:
        ask: Asks ranks.
        processes: Returns the ranks of this machine.
        proc: Path of procfs.
    """

    name = "memory"
    changes = "difference"
    is_compared = True

    def __init__(self, ask: AskRanks, processes: Callable[[], Sequence[RankProcess]], proc: Path) -> None:
        self._ask = ask
        self._processes = processes
        self._proc = proc

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, _cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the memory of ranks as JSON; see `RankRecorder`."""
        _, answers = self._ask("memory?", capture.run, frozenset(ranks), seconds=ANSWER_SECONDS)
        snapshots: dict[int, MemorySnapshot] = {answer.rank: answer.body for answer in answers}
        pids = {process.rank: process.pid for process in self._processes() if process.run_id == capture.run}
        outcomes: dict[int, Path | str] = {}
        for rank in ranks:
            snapshot, mappings = snapshots.get(rank), read_mappings(self._proc, pids.get(rank, 0))
            if snapshot is None and not mappings:
                outcomes[rank] = "its client does not answer, and its mappings cannot be read"
                continue
            found = RankMemory(snapshot or MemorySnapshot([]), mappings)
            outcomes[rank] = written(directory / f"memory_{rank}.json", msgspec.json.encode(found))
        return outcomes

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the largest allocations and mappings of each rank."""
        ranks = {str(rank): _rank(_decode(path.read_bytes())) for rank, path in files.items()}
        return {"ranks": ranks}

    @staticmethod
    def difference(reference: Mapping[str, Any], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what grew between two snapshots of a run by a MiB or more, the most first."""
        grown = []
        for rank in reference["ranks"].keys() & summary["ranks"].keys():
            before = dict(_sizes(reference["ranks"][rank]))
            for (where, name), after in _sizes(summary["ranks"][rank]):
                was = before.get((where, name), 0)
                if after - was >= RELEVANT:
                    text = f"rank {rank}, {where}: {name} {byte_size(was)} → {byte_size(after)}"
                    grown.append(
                        {"text": text, "name": name, "kind": where, "rank": int(rank), "before": was, "after": after}
                    )
        return sorted(grown, key=lambda one: one["before"] - one["after"])

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return the largest allocations and mappings of each rank."""
        lines = []
        for rank, found in summary["ranks"].items():
            for one in found["allocators"]:
                lines.append(
                    f"rank {rank}, {one['name']}: {byte_size(one['allocated'])} allocated of {byte_size(one['reserved'])} reserved"
                )
                lines += [
                    f"  {byte_size(site['bytes']):>9} in {site['count']} x  {site['name'] or 'no stack recorded yet'}"
                    for site in one["sites"][:SHOWN]
                ]
            lines += [f"rank {rank}: {error}" for error in found["errors"]]
            if found["mappings"]:
                lines.append(f"rank {rank}, process: {byte_size(found['bytes'])} in RAM and swap")
                lines += [f"  {byte_size(one['bytes']):>9}  {one['name']}" for one in found["mappings"][:SHOWN]]
        return lines


def read_mappings(proc: Path, pid: int) -> dict[str, int]:
    """Return the bytes in RAM and swap of a process by mapping, its share of shared ones (/proc/PID/smaps, Pss and SwapPss).

    The kernel stops page faults of the process for as long. Without permission, or without the process, nothing is returned.
    """
    try:
        text = (proc / str(pid) / "smaps").read_bytes() if pid > 0 else b""
    except OSError:
        return {}
    sizes: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        if _MAPPING.match(line):
            name = b" ".join(line.split()[5:]).decode(errors="replace") or "[anon]"
        elif line.startswith((b"Pss:", b"SwapPss:")):
            sizes[name] = sizes.get(name, 0) + int(line.split()[1]) * 1024
    return {name: size for name, size in sizes.items() if size}


def _rank(memory: RankMemory) -> dict[str, Any]:
    mappings = sorted(memory.mappings.items(), key=lambda item: -item[1])
    allocators = [
        {
            "name": one.name,
            "allocated": one.allocated,
            "reserved": one.reserved,
            "sites": [
                {"name": _place(site.frames), "bytes": site.bytes, "count": site.count, "frames": site.frames}
                for site in one.sites[:ROWS]
            ],
        }
        for one in memory.snapshot.allocators
    ]
    return {
        "allocators": allocators,
        "mappings": [{"name": name, "bytes": size} for name, size in mappings[:ROWS]],
        "bytes": sum(memory.mappings.values()),
        "errors": memory.snapshot.errors,
    }


def _place(frames: Sequence[str]) -> str:
    """Return the innermost call of the user's, as ``FILE:LINE FUNCTION``; empty if no stack was recorded."""
    return next((frame for frame in frames if not _LIBRARY.search(frame)), next(iter(frames), ""))


def _sizes(rank: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], int]]:
    for allocator in rank["allocators"]:
        sums: dict[str, int] = {}
        for site in allocator["sites"]:
            name = site["name"] or "blocks without a stack"
            sums[name] = sums.get(name, 0) + site["bytes"]
        yield from (((allocator["name"], name), size) for name, size in sums.items())
    yield from ((("mapping", one["name"]), one["bytes"]) for one in rank["mappings"])
