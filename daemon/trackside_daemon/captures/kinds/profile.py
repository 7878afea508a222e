"""Profiles of steps: recorded by PyTorch's own profiler or by trackside's client, summarised in a process of their own."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trackside.wire import ProfileQuestion
from trackside_daemon.captures.kinds.kind import AskRanks, CaptureKind, RankRecorder, Summarize, written
from trackside_daemon.captures.kineto.recorder import KinetoRecorder
from trackside_daemon.captures.kineto.windows import SLOWNESS, STEP_SECONDS
from trackside_daemon.captures.summary.bottleneck import milliseconds, overall
from trackside_daemon.captures.summary.difference import difference
from trackside_daemon.captures.summary.parts import PARTS
from trackside_daemon.captures.summary.request import MODULE, SummaryRequest, TraceSummary
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.text import counted, cut, duration, percent, shown

ANSWER_SECONDS = 30.0  # how long a client may take from the end of its recording to its answer
SUMMARY_SECONDS = 180.0  # the longest wait for one trace: 90 seconds of a processor, at idle priority
LINES = 40  # of the text
RANKS, OPERATORS, FUNCTIONS = 8, 12, 5  # lines of each table
WIDTH = 44  # columns of a name

SILENT = "its client does not answer: it is stopped, or of an older version that records another capture"

_one_at_a_time = threading.Lock()  # of the traces of all captures


class Profiles(CaptureKind):
    """Captures of profiles.

    Args:
        pytorch: The recorder that asks PyTorch itself.
        ask: Asks ranks.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
        world_size: Returns the number of ranks of a run, by its id; None if it is not known.
        memory: Most bytes that the process of a summary uses.
    """

    name = "profile"
    contents = "trace"
    least_bytes = 32 << 20  # a trace of ten steps has 14 MB, and then it is compressed
    changes = "difference"
    is_compared = True

    def __init__(
        self,
        pytorch: KinetoRecorder,
        ask: AskRanks,
        step_seconds: Callable[[str, int], float | None],
        world_size: Callable[[str], int | None],
        memory: int,
    ) -> None:
        self._recorders = (pytorch, ClientProfiles(pytorch.unreached, ask, step_seconds))
        self._world_size = world_size
        self._memory = memory

    @property
    def recorders(self) -> Sequence[RankRecorder]:
        """PyTorch itself, then trackside's client."""
        return self._recorders

    @contextmanager
    def prepared_summary(self, capture: Capture) -> Iterator[Summarize]:
        """Start the process that summarises, so that it is ready when the traces are; see `CaptureKind`."""
        with started(self._memory) as worker:
            yield lambda files: summarize(worker, files, capture.options.steps, self._world_size(capture.run))

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return what limits the steps, where their time goes by rank, and the largest operators and functions of one rank."""
        ranks = summary["ranks"]
        lines = [f"rank {rank}: {reason}" for rank, reason in summary["failed"].items()][:RANKS]
        if not ranks:
            return [shown(line) for line in lines]
        found = summary["bottleneck"]
        rank = found.get("last", found["rank"])
        profile = ranks[str(rank)]
        lines += [
            f"bottleneck: {found['text']}",
            "",
            "ms a step" + _columns({part: part for part in ("total", *PARTS)}),
        ]
        lines += [_parts(rank, profile["parts"]) for rank, profile in [*ranks.items()][:RANKS]]
        count = len(profile["steps"])
        what = counted(count, "step") if profile["marked"] else "the whole recording, since no optimizer stepped"
        lines += ["", f"rank {rank}, {what}: operators by their own time"]
        lines += [_operator(row) for row in profile["operators"][:OPERATORS]]
        if profile["functions"]:
            lines += ["", f"rank {rank}: Python functions by their own time"]
            lines += [_function(row) for row in profile["functions"][:FUNCTIONS]]
        return [shown(line) for line in lines[:LINES]]

    difference = staticmethod(difference)


class ClientProfiles(RankRecorder):
    """A `RankRecorder` of profiles of ranks that *pytorch* does not reach.

    Args:
        unreached: Returns the ranks of a run, by its id, that PyTorch's own recorder does not reach; it leaves the others alone.
        ask: Asks ranks.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
    """

    def __init__(
        self,
        unreached: Callable[[str, Sequence[int]], frozenset[int]],
        ask: AskRanks,
        step_seconds: Callable[[str, int], float | None],
    ) -> None:
        self._unreached = unreached
        self._ask = ask
        self._step_seconds = step_seconds

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Refuse ranks that PyTorch's own recorder reaches; see `RankRecorder`."""
        unreached = self._unreached(capture.run, ranks)
        return {rank: "its PyTorch records itself" for rank in ranks if rank not in unreached}

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the traces that ranks send; see `RankRecorder`."""
        options = capture.options
        step = self._step_seconds(capture.run, capture.attempt) or STEP_SECONDS
        # One step more than was asked for, since the recording begins within one.
        seconds = options.seconds or ((options.steps or 1) + 1) * step * SLOWNESS
        question = ProfileQuestion(seconds, options.shapes, options.stacks, options.memory)
        _, answers = self._ask(
            "profile?", capture.run, frozenset(ranks), question, seconds + ANSWER_SECONDS, cancelled=cancelled
        )
        outcomes: dict[int, Path | str] = dict.fromkeys(ranks, "cancelled" if cancelled.is_set() else SILENT)
        for answer in answers:
            path = directory / f"trace_{answer.rank}.json.gz"
            outcomes[answer.rank] = answer.body.error or written(path, answer.body.trace)
        return outcomes


@contextmanager
def started(memory: int) -> Iterator[CallWorker[TraceSummary]]:
    """Start the process that summarises, so that it is ready when the traces are; the same thread should use it.

    Args:
        memory: Most bytes that it uses.
    """
    with CallWorker(MODULE, TraceSummary, memory=memory, name="the process that reads traces") as worker:
        with suppress(WorkerFailed):  # then each trace has it as its reason
            worker.start()
        yield worker


def summarize(
    worker: CallWorker[TraceSummary], files: Mapping[int, Path], steps: int | None, world_size: int | None = None
) -> dict[str, Any]:
    """Summarise traces by rank, and replace each with a gzip that has the marks which viewers need.

    It blocks for seconds, and never raises for a trace.

    Args:
        worker: The process.
        files: The traces, as the profiler wrote them.
        steps: Number of steps to cut them to; None for all whole ones.
        world_size: Number of ranks of the run.

    Returns:
        ``ranks``: the summaries by rank; ``files``: the names of the new files by rank; ``failed``: the reasons by rank
        in one line; ``bottleneck``: the one of the rank that limits the others.
    """
    summary: dict[str, Any] = {"ranks": {}, "files": {}, "failed": {}}
    near: float | None = None
    for rank, path in sorted(files.items()):
        output = path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.json.gz")
        distributed = {"rank": rank, "world_size": world_size or len(files)}
        try:
            with _one_at_a_time:
                answer = worker.ask(SummaryRequest(str(path), str(output), distributed, steps, near), SUMMARY_SECONDS)
        except WorkerFailed as error:
            summary["failed"][str(rank)] = str(error)
            continue
        near = near or answer.begin
        summary["ranks"][str(rank)] = answer.summary
        summary["files"][str(rank)] = output.name
        if output != path:
            path.unlink(missing_ok=True)
    return summary | {"bottleneck": overall(summary["ranks"])}


def _parts(rank: str, parts: Mapping[str, float]) -> str:
    named = {"total": parts["seconds"], **{part: parts[part] for part in PARTS}}
    return f"rank {rank:<4}" + _columns({part: milliseconds(seconds) for part, seconds in named.items()})


def _columns(cells: Mapping[str, str]) -> str:
    """Return cells below the names of their columns, which together are narrower than a terminal."""
    return "".join(f"{cell:>{max(5, len(name)) + 2}}" for name, cell in cells.items())


def _operator(row: Mapping[str, Any]) -> str:
    times = " ".join(f"{name} {duration(row[name]):>7}" for name in ("cpu", "gpu") if row[name])
    place = "  ".join(part for part in (row["source"], cut(row["shapes"], WIDTH)) if part)
    return f"  {percent(row['share']):>7}  {times}  {row['count']:>6.4g} x  {cut(row['name'], WIDTH)}  {place}".rstrip()


def _function(row: Mapping[str, Any]) -> str:
    times = f"  {percent(row['share']):>7}  {duration(row['seconds']):>7}"
    return f"{times}  {cut(row['name'], WIDTH)}  {cut(row['inner'], WIDTH)}".rstrip()
