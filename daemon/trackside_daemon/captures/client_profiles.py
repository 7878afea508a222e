"""Profiles that trackside's client records in a training whose PyTorch does not ask the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside.wire import ProfileQuestion
from trackside_daemon.captures.kineto.recorder import UNREACHED
from trackside_daemon.captures.kineto.windows import SLOWNESS, STEP_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.captures.recorder import AskRanks, Recorder
    from trackside_daemon.model.capture import Capture

ANSWER_SECONDS = 30.0  # how long a client may take from the end of its recording to its answer

SILENT = "its client does not answer: it is stopped, records another profile, or is of an older version"


class ClientProfiles:
    """A `Recorder` of profiles of ranks that *pytorch* does not reach.

    Args:
        pytorch: The recorder that asks PyTorch itself; a rank that it refuses for another reason is left alone.
        ask: Asks ranks.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
    """

    def __init__(self, pytorch: Recorder, ask: AskRanks, step_seconds: Callable[[str, int], float | None]) -> None:
        self._pytorch = pytorch
        self._ask = ask
        self._step_seconds = step_seconds

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Refuse ranks that PyTorch's own recorder reaches; see `Recorder`."""
        refused = self._pytorch.refuse(capture, ranks)
        reasons = {rank: refused.get(rank, "its PyTorch records itself") for rank in ranks}
        return {rank: reason for rank, reason in reasons.items() if reason != UNREACHED}

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write the traces that ranks send; see `Recorder`."""
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
            outcomes[answer.rank] = answer.body.error or path
            if not answer.body.error:
                try:
                    path.write_bytes(answer.body.trace)
                except OSError as error:
                    outcomes[answer.rank] = f"{path}: {(error.strerror or str(error)).lower()}"
        return outcomes
