"""Modules of a watched model as captures: the time and the activations of each, by trackside's client, as a Chrome trace."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trackside.limits import PROFILE_SECONDS
from trackside.wire import ModuleCall, ModuleCalls, ModulesQuestion
from trackside_daemon.captures.kinds.kind import AskRanks, CaptureKind, written
from trackside_daemon.captures.kineto.windows import SLOWNESS, STEP_SECONDS
from trackside_daemon.model.capture import OPTIONS_BY_KIND, Capture
from trackside_daemon.model.text import aligned, byte_size, column_widths, counted, duration, shown

ROWS = 200  # modules of a rank that a summary keeps
SHOWN = 24  # likewise its text, of the first rank
ANSWER_SECONDS = 5.0
MAX_NAME_CELLS = 60  # cells of a module's name in the text
HOST, GPU = 1, 2  # the processes of the trace
UNANSWERED = "its client does not answer: it is stopped, a call holds the GIL, or it is older than captures of modules"
HEADER = ("module", "class", "calls", "host", "own", "GPU", "own", "activations")


class Args(msgspec.Struct):
    """Facts of a call besides its time, in microseconds and bytes."""

    cls: str = msgspec.field(name="class", default="")
    step: int = 0
    own: float = 0.0
    gpu: float = 0.0
    gpu_own: float = 0.0
    activations: int = 0


class ModuleEvent(msgspec.Struct):
    """An event of the trace."""

    name: str
    ph: str
    pid: int
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args = msgspec.field(default_factory=Args)


class ModuleTrace(msgspec.Struct):
    """The file of a rank, which Perfetto opens."""

    traceEvents: list[ModuleEvent]  # noqa: N815  as viewers read it
    steps: int
    compiled: int


_decode = msgspec.json.Decoder(ModuleTrace).decode


class Modules(CaptureKind):
    """Captures of modules.

    Args:
        ask: Asks ranks.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
    """

    name = "modules"

    def __init__(self, ask: AskRanks, step_seconds: Callable[[str, int], float | None]) -> None:
        self._ask = ask
        self._step_seconds = step_seconds

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the calls that ranks send as traces; see `RankRecorder`."""
        steps = capture.options.steps or OPTIONS_BY_KIND[self.name].steps
        step = self._step_seconds(capture.run, capture.attempt) or STEP_SECONDS
        seconds = min((steps + 1) * step * SLOWNESS + ANSWER_SECONDS, PROFILE_SECONDS)
        question = ModulesQuestion(steps, seconds)
        _, answers = self._ask(
            "modules?", capture.run, frozenset(ranks), question, seconds + ANSWER_SECONDS, cancelled=cancelled
        )
        outcomes: dict[int, Path | str] = dict.fromkeys(ranks, "cancelled" if cancelled.is_set() else UNANSWERED)
        for answer in answers:
            path = directory / f"modules_{answer.rank}.json"
            found = answer.body
            known = min(len(found.names), len(found.classes))
            if not all(call.place < known for call in found.calls):
                outcomes[answer.rank] = "its calls name no module of it"
            else:
                outcomes[answer.rank] = written(path, _trace(answer.rank, found)) if found.calls else found.error
        return outcomes

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the modules of each rank, the one with the most time of its own first, as of one step."""
        return {"ranks": {str(rank): _rank(_decode(path.read_bytes())) for rank, path in files.items()}}

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return the modules of the first rank that take the most time of their own."""
        (rank, found), *others = summary["ranks"].items()
        lines = [f"rank {rank}: {counted(len(found['modules']), 'module')} in {counted(found['steps'], 'step')}"]
        lines[0] += ", forward passes only, times of a step, activations of a call"
        if found["compiled"]:
            lines.append(f"{counted(found['compiled'], 'module')} left out: compiled code calls no hooks")
        rows = [HEADER, *map(_cells, found["modules"][:SHOWN])]
        first, *rest = column_widths(rows)
        lines += aligned(rows, [min(first, MAX_NAME_CELLS), *rest], "  >>>>>>")
        lines += [f"rank {other}: in its file" for other, _ in others]
        return [shown(line) for line in lines[:40]]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    times = (duration(row[name]) if row[name] else "-" for name in ("seconds", "own", "gpu", "gpu_own"))
    return row["name"], row["class"], f"{row['calls']:g}", *times, byte_size(row["activations"])


def _trace(rank: int, found: ModuleCalls) -> bytes:
    """Return the calls as a Chrome trace, on the host and on the GPU."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"rank {rank}, modules on the {where}"}}
        for pid, where in ((HOST, "host"), (GPU, "GPU"))
    ]
    zero = min(call.begin for call in found.calls)
    for call, own, gpu_own in _own(found.calls):
        args = Args(
            found.classes[call.place],
            call.step,
            own * 1e6,
            call.gpu_seconds * 1e6,
            gpu_own * 1e6,
            call.allocated if call.gpu_seconds else call.output_bytes,
        )
        event = ModuleEvent(
            found.names[call.place], "X", HOST, call.thread, (call.begin - zero) * 1e6, call.seconds * 1e6, args
        )
        events.append(msgspec.to_builtins(event))
        if call.gpu_seconds:
            events.append(
                {**events[-1], "pid": GPU, "tid": 0, "ts": call.gpu_begin * 1e6, "dur": call.gpu_seconds * 1e6}
            )
    trace = {"displayTimeUnit": "ms", "traceEvents": events, "steps": found.steps, "compiled": found.compiled}
    return msgspec.json.encode(trace)


def _own(calls: Sequence[ModuleCall]) -> Iterator[tuple[ModuleCall, float, float]]:
    """Yield calls with their time on the host and the GPU without that of the modules that they call."""
    inner: list[list[float]] = [[0.0, 0.0] for _ in calls]
    open_: dict[int, list[int]] = {}
    order = sorted(range(len(calls)), key=lambda place: (calls[place].begin, -calls[place].seconds))
    for place in order:
        call = calls[place]
        stack = open_.setdefault(call.thread, [])
        while stack and calls[stack[-1]].begin + calls[stack[-1]].seconds < call.begin + call.seconds:
            stack.pop()
        if stack:
            inner[stack[-1]][0] += call.seconds
            inner[stack[-1]][1] += call.gpu_seconds
        stack.append(place)
    for place in order:
        host, gpu = inner[place]
        yield calls[place], max(0.0, calls[place].seconds - host), max(0.0, calls[place].gpu_seconds - gpu)


def _rank(trace: ModuleTrace) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    steps = max(1, trace.steps)
    for event in trace.traceEvents:
        if event.ph != "X" or event.pid != HOST:
            continue
        zeros = dict.fromkeys(("calls", "seconds", "own", "gpu", "gpu_own", "activations"), 0.0)
        row = rows.setdefault(event.name, {"name": event.name, "class": event.args.cls, **zeros})
        row["calls"] += 1 / steps
        for name, micros in (
            ("seconds", event.dur),
            ("own", event.args.own),
            ("gpu", event.args.gpu),
            ("gpu_own", event.args.gpu_own),
        ):
            row[name] += micros / 1e6 / steps
        row["activations"] = max(row["activations"], event.args.activations)
    order = sorted(rows.values(), key=lambda row: (-row["gpu_own"], -row["own"]))
    return {"steps": trace.steps, "compiled": trace.compiled, "modules": order[:ROWS]}
