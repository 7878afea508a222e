"""The tail of PyTorch's flight recorder: the newest collectives of this process by process group, as plain data."""

import pickle
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from operator import itemgetter
from typing import Any

import msgspec

from trackside.captures.children import child_processes
from trackside.environment import exit_status
from trackside.interpreter import stacks, without_collection
from trackside.limits import CAPTURE_RANKS, FLIGHT_ENTRIES, FLIGHT_GROUPS
from trackside.wire import Flight, FlightEntry, FlightGroup

THREADS = 64
CHARACTERS = 200

# The recorder of Gloo and others, and that of NCCL: PyTorch needs half as long for the pickle as for JSON, and 2.4 has no JSON.
_DUMPS = (("_dump_fr_trace", "_dump_fr_trace_json"), ("_dump_nccl_trace", "_dump_nccl_trace_json"))


class _Entry(msgspec.Struct):
    """The fields of an entry that are used, by the names of c10d/FlightRecorderDetail.hpp."""

    process_group: list[str] = msgspec.field(default_factory=list)
    profiling_name: str = ""
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = msgspec.field(default_factory=list)
    input_dtypes: list[str] = msgspec.field(default_factory=list)
    state: str = ""
    retired: bool = False
    time_created_ns: int = 0


def flight() -> Flight:
    """Return the stacks of all threads, the main thread first, the newest entries of each process group, and the children.

    PyTorch is not imported for this. A process without a recorder has no groups.
    """
    threads = sorted(stacks().items(), key=lambda thread: not thread[0].startswith("MainThread"))
    with without_collection():  # the entries would make it examine the whole process
        groups = _groups()
    return Flight(dict(threads[:THREADS]), groups, child_processes())


def newest_call() -> str:
    """Return number, group, operation and tensors of this process's newest collective; empty if no recorder has it."""
    calls = [(-entry.age, entry, group) for group in _groups() for entry in group.entries if not entry.p2p]
    if not calls:
        return ""
    _, entry, group = max(calls, key=itemgetter(0))
    return f"{entry.sequence} of {group.description}: {entry.operation}{entry.shape and f' with {entry.shape}'}"


exit_status.newest_call = newest_call


def _groups() -> list[FlightGroup]:
    groups: dict[tuple[str, ...], FlightGroup] = {}
    now = time.time_ns()
    for dump in _dumps():
        with suppress(LookupError, TypeError, AttributeError, msgspec.ValidationError):  # another version's form
            for key, tail in list(_tails(dump).items())[: FLIGHT_GROUPS - len(groups)]:
                backend, name, description = (*key, "", "")[:3]
                entries = [_plain(entry, now) for entry in msgspec.convert(list(tail), list[_Entry])]
                groups[key] = FlightGroup(
                    backend[:CHARACTERS], name[:CHARACTERS], description[:CHARACTERS], _members(dump, name), entries
                )
    return list(groups.values())


def _tails(dump: dict[str, Any]) -> dict[tuple[str, ...], deque[Any]]:
    """Return the newest entries by the backend, name and description of their group."""
    tails: dict[tuple[str, ...], deque[Any]] = {}
    for entry in dump["entries"]:
        key = entry["profiling_name"].partition(":")[0], *entry["process_group"][:2]
        tails.setdefault(key, deque(maxlen=FLIGHT_ENTRIES)).append(entry)
    return tails


def _dumps() -> Iterator[dict[str, Any]]:
    """Yield what each recorder of this process has; the names of these private functions have changed before."""
    library = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    for as_pickle, as_json in _DUMPS:
        with suppress(Exception):  # a recorder that fails must not cost the stacks
            if (dump := getattr(library, as_pickle, None)) is not None:
                # Without stacks, whose symbols can take long. The bytes come from this process itself.
                yield pickle.loads(dump(True, False, False))  # noqa: S301
            elif (dump := getattr(library, as_json, None)) is not None:
                yield msgspec.json.decode(dump())


def _plain(entry: _Entry, now: int) -> FlightEntry:
    done = entry.retired or entry.state == "completed"
    return FlightEntry(
        entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
        entry.profiling_name.rpartition(":")[2][:CHARACTERS],
        "completed" if done else entry.state[:CHARACTERS],
        ", ".join(f"{size} {kind}" for size, kind in zip(entry.input_sizes, entry.input_dtypes, strict=False))[
            :CHARACTERS
        ],
        sum(map(prod, entry.input_sizes)),
        max(0.0, (now - entry.time_created_ns) / 1e9),
        entry.is_p2p,
    )


def _members(dump: dict[str, Any], name: str) -> list[int]:
    """Return the global ranks of a group; none if neither the recorder nor PyTorch has them."""
    with suppress(msgspec.MsgspecError, TypeError, KeyError):
        text = dump["pg_config"][name]["ranks"]
        return msgspec.json.decode(text, type=list[int])[:CAPTURE_RANKS]
    # The recorder of Gloo does not have them. The main thread may create a group at the same time.
    with suppress(AttributeError, RuntimeError, KeyError):
        world = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001  it has no public name
        groups = (group for group, named in list(world.pg_names.items()) if named == name)
        return [rank for group in groups for rank in list(world.pg_group_ranks[group])][:CAPTURE_RANKS]
    return []
