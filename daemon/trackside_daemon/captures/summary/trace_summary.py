"""The summary of one rank's trace."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from trackside_daemon.captures.summary import tables
from trackside_daemon.captures.summary.bottleneck import bottleneck
from trackside_daemon.captures.summary.parts import divide, without
from trackside_daemon.captures.summary.tables import ADDRESS, LOADER, TEXT, ThreadCall, encloses, nest, user_source
from trackside_daemon.captures.summary.trace import TraceEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.captures.summary.parts import Span
    from trackside_daemon.captures.summary.steps import Steps
    from trackside_daemon.captures.summary.trace import Trace

SMALLEST = 0.005  # share of the time below which a call is left out
NODES = 500  # the most calls that are kept
DEPTH = 100
COPIES = frozenset(("aten::copy_", "aten::_foreach_copy_", "aten::_pin_memory"))
COMMUNICATION = ("c10d::", "gloo:", "nccl", "mpi:", "ucc:", "xccl:")
SYNCHRONISATION = frozenset(("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))
ALLOCATION = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostFree", "cuMem")
ALLOCATORS = frozenset(("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"))

LAUNCH = 20.0  # microseconds of an operator on a CPU that count as its dispatch, the rest as compute
_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_THREADS = frozenset(("cpu_op", "user_annotation", "python_function"))


def summarize_trace(trace: Trace, steps: Steps) -> dict[str, Any]:
    """Return steps with their parts, operators, functions and the bottleneck, as JSON."""
    threads: defaultdict[tuple[int | str, int | str], list[TraceEvent]] = defaultdict(list)
    for event in trace.events:
        if event.cat in _THREADS:
            threads[event.pid, event.tid].append(event)
    kernels = [event for event in trace.events if event.cat in _GPU]
    # The annotation of a collective on a GPU only repeats its kernel.
    collectives = [event for event in kernels or trace.events if event.name.startswith(COMMUNICATION)]
    if not kernels:
        threads[steps.pid, steps.tid] += _waits(threads[steps.pid, steps.tid], collectives)
    calls = {thread: nest(events) for thread, events in threads.items()}
    main = calls[steps.pid, steps.tid]
    spans = _device_spans(kernels) if kernels else _host_spans(main)
    spans["communication"] = [_span(event) for event in collectives]
    spans["loader"] = [_span(call.event) for call in main if call.event.name.startswith(LOADER)]
    spans["profiler"] = [_span(event) for event in trace.events if event.cat == "overhead"]
    spans["sync"] = [_span(event) for event in trace.events if event.name in SYNCHRONISATION]
    every = [call for thread in calls.values() for call in thread]
    divided = divide(spans, steps.edges, gpu=bool(kernels))
    summary = {
        "device": "gpu" if kernels else "cpu",
        "steps": divided,
        "parts": {part: sum(step[part] for step in divided) / len(divided) for part in divided[0]},
        "marked": steps.whole,
        "operators": tables.operators(every, kernels, steps.edges),
        "communication": tables.communication(collectives, steps.edges),
        "functions": tables.functions(main, steps.edges),
        "host": _host(main, trace, steps),
        "flame": flame(main, steps.edges),
    }
    return summary | {"bottleneck": bottleneck(summary)}


def _waits(main: list[TraceEvent], collectives: list[TraceEvent]) -> list[TraceEvent]:
    """Return the waits of the training thread for collectives, as calls, whose time is then not that of their callers."""
    work = [_span(event) for event in main if event.cat == "cpu_op"]
    waits = without([_span(event) for event in collectives], work)
    return [TraceEvent("X", "wait for other ranks", "wait", ts=begin, dur=end - begin) for begin, end in waits]


def _span(event: TraceEvent) -> Span:
    return event.ts, event.end


def _device_spans(kernels: list[TraceEvent]) -> dict[str, list[Span]]:
    work = [event for event in kernels if event.cat == "kernel" and not event.name.startswith(COMMUNICATION)]
    return {
        "work": [_span(event) for event in work],
        "copy": [_span(event) for event in kernels if event.cat != "kernel"],
    }


def _host_spans(main: list[ThreadCall]) -> dict[str, list[Span]]:
    """Return the work of a rank without a GPU: the operators of its training thread."""
    outermost = [call.event for call in main if call.event.cat == "cpu_op" and not call.in_operator]
    return {
        "work": [_span(event) for event in outermost if not event.name.startswith(COMMUNICATION)],
        "copy": [_span(call.event) for call in main if call.event.name in COPIES],
    }


def _host(main: list[ThreadCall], trace: Trace, steps: Steps) -> dict[str, Any]:
    """Return what the host did in a step, in seconds and counts: dispatch, allocations, synchronisation, the longest gap."""
    first, last, count = steps.edges[0], steps.edges[-1], len(steps.edges) - 1
    inside = [call for call in main if first <= call.event.ts < last and not call.in_loader]
    operators = [call for call in inside if call.event.cat == "cpu_op"]
    events = [event for event in trace.events if first <= event.ts < last]
    allocations = [event.dur for event in events if event.name.startswith(ALLOCATION)]
    allocations += [max(0.0, call.own - LAUNCH) for call in operators if call.event.name in ALLOCATORS]
    seconds, before, after = _gap(operators)
    return {
        "operators": len(operators) / count,
        "launch": _launch(operators) / 1e6 / count,
        "called": _called(operators),
        "allocation": sum(allocations) / 1e6 / count,
        "syncs": sum(event.name in SYNCHRONISATION for event in events) / count,
        "gap": {"seconds": seconds / 1e6 / count, "after": before, "before": after},
    }


def _launch(operators: list[ThreadCall]) -> float:
    """Return the microseconds of dispatch. The median decides for an operator: a busy machine interrupts the shortest."""
    own: defaultdict[str, list[float]] = defaultdict(list)
    for call in operators:
        if call.event.name not in COPIES:
            own[call.event.name].append(call.own)
    return sum(sum(one) if median(one) <= LAUNCH else LAUNCH * len(one) for one in own.values())


def _called(operators: list[ThreadCall]) -> str:
    """Return the operator that the training calls itself with the most time, its median call times their number."""
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for call in operators:
        if not call.in_operator:
            durations[call.event.name].append(call.event.dur)
    return max(durations, key=lambda name: median(durations[name]) * len(durations[name]), default="")[: tables.TEXT]


def _gap(operators: list[ThreadCall]) -> tuple[float, str, str]:
    """Return the pair of operators with the most time between them, in microseconds of all steps."""
    gaps: defaultdict[tuple[str, str], float] = defaultdict(float)
    outermost = [call.event for call in operators if not call.in_operator]
    for one, other in pairwise(outermost):
        gaps[one.name, other.name] += max(0.0, other.ts - one.end)
    if not gaps:
        return 0.0, "", ""
    before, after = max(gaps, key=lambda pair: gaps[pair])
    return gaps[before, after], before[: tables.TEXT], after[: tables.TEXT]


class _Node:
    def __init__(self) -> None:
        self.microseconds = 0.0
        self.children: dict[str, _Node] = {}


def flame(calls: Sequence[ThreadCall], edges: Sequence[float]) -> dict[str, Any]:
    """Return the root of the tree: ``name``, ``seconds`` per step, and ``children``, the longest first.

    Args:
        calls: Those of the training thread, by their begin.
        edges: Begin of each step and end of the last, in microseconds.
    """
    root, first, last = _Node(), edges[0], edges[-1]
    root.microseconds = last - first
    open_calls: list[tuple[TraceEvent, _Node]] = []
    for call in calls:
        event = call.event
        while open_calls and not encloses(open_calls[-1][0], event):
            open_calls.pop()
        seconds = min(event.end, last) - max(event.ts, first)
        if seconds <= 0 or len(open_calls) >= DEPTH:
            continue
        parent = open_calls[-1][1] if open_calls else root
        node = parent.children.setdefault(_name(event), _Node())
        node.microseconds += seconds
        open_calls.append((event, node))
    smallest = _smallest(root)
    return _as_json("step", root, 1e6 * (len(edges) - 1), smallest)


def _name(event: TraceEvent) -> str:
    return (user_source(event.name) or event.name.split(ADDRESS)[0])[:TEXT]


def _smallest(root: _Node) -> float:
    """Return the microseconds below which calls are left out, so that at most `NODES` are kept."""
    sizes: list[float] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        sizes.append(node.microseconds)
        waiting += [child for child in node.children.values() if child.microseconds >= SMALLEST * root.microseconds]
    return max([SMALLEST * root.microseconds, *sorted(sizes, reverse=True)[NODES : NODES + 1]])


def _as_json(name: str, node: _Node, divisor: float, smallest: float) -> dict[str, Any]:
    kept = sorted(node.children.items(), key=lambda item: -item[1].microseconds)
    children = [_as_json(own, child, divisor, smallest) for own, child in kept if child.microseconds >= smallest]
    return {"name": name, "seconds": node.microseconds / divisor, "children": children}
