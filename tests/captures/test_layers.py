"""Layers as captures: what the ranks measure after the request is kept, summarised as one model, and what is lacking is named."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, history, opened
from layer_frames import attention, frame, normal
from session_records import batch_ingested

from trackside_daemon.captures.kinds.layers import RANKS, STILL_SECONDS, UNOBSERVED, Layers
from trackside_daemon.captures.store import CaptureStore
from trackside_daemon.history.files.layer_lines import frame_of
from trackside_daemon.model.capture import OPTIONS_BY_KIND, Capture, ProfileOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from histories import History

STEPS = OPTIONS_BY_KIND["layers"].steps
CAPTURE = Capture("1", "id-0", 0, "layers", "person", BEGIN, options=ProfileOptions(STEPS))


@pytest.fixture
def stored_history(place: Path) -> Iterator[History]:
    with history(place) as one:
        yield one


class Training:
    """Two ranks that measure their halves of the layers when they are asked to; or only the first of them."""

    def __init__(self, stored_history: History, last: int = STEPS, measuring: int = 2) -> None:
        self._kept, self._last, self._measuring = stored_history, last, measuring
        self._ranks = [opened("id-0", rank=rank, world=2) for rank in range(2)]
        stored_history.put([*self._ranks, self._measured(0, 0)])
        self.commands: list[Any] = []

    def command(self, *command: Any) -> None:
        """Measure each fourth step, where the gradient of one layer grows."""
        self.commands.append(command)
        self._kept.put(
            [self._measured(rank, step) for rank in range(self._measuring) for step in range(4, self._last + 1, 4)]
        )

    def _measured(self, rank: int, step: int) -> Any:
        grown = {"embed": normal(1), "head": normal(2, scale=1.0 + step)}
        frames = [frame(step, grown, "gradients"), attention(step, {"attn/0": (0.5, 9.0)})]
        return batch_ingested(self._ranks[rank].session.id, step, distributions=frames)


def recorder(stored_history: History, training: Training, still_seconds: float = STILL_SECONDS) -> Layers:
    return Layers(stored_history.database, training.command, lambda *_: None, still_seconds)


def recorded(
    stored_history: History, training: Training, place: Path, still_seconds: float = STILL_SECONDS
) -> dict[int, Path | str]:
    directory = place / "recorded"
    directory.mkdir()
    one = recorder(stored_history, training, still_seconds)
    assert one.refuse(CAPTURE, [0, 1]) == {}
    return one.record(CAPTURE, [0, 1], directory, threading.Event())


def test_the_measurements_after_the_request_are_files_and_one_summary(stored_history: History, place: Path) -> None:
    training = Training(stored_history)
    files = recorded(stored_history, training, place)
    assert training.commands == [("id-0", STEPS, frozenset((0, 1)))]
    paths = {rank: path for rank, path in files.items() if not isinstance(path, str)}
    summary = Layers.summarize(paths)
    packed = CaptureStore(place).pack(recorder(stored_history, training), paths)
    assert [(one.rank, one.name, one.kind) for one in packed] == [
        (0, "layers_0.jsonl.gz", "layers"),
        (1, "layers_1.jsonl.gz", "layers"),
    ]
    lines = [json.loads(line) for line in gzip.decompress(paths[0].with_suffix(".jsonl.gz").read_bytes()).splitlines()]
    assert frame_of(lines[0]).names == ["embed", "head"]  # as an import reads it
    assert summary["ranks"]["1"]["steps"] == [*range(4, STEPS + 1, 4)]
    gradients = summary["kinds"]["gradients"]
    assert (gradients["step"], gradients["layers"]["head"]["size"]) == (STEPS, 200)  # of both ranks
    (change,) = summary["changes"]
    assert (change["layer"], change["kind"], change["after"] / change["before"]) == (
        "head",
        "gradients",
        pytest.approx((1 + STEPS) / 5, rel=1e-3),
    )
    lines = Layers.text(summary)
    assert lines[0] == f"3 layers in {STEPS // 4} measured steps, 4 to {STEPS}, of ranks 0, 1"
    assert lines[1].split() == ["layer", "norm", "update", "ratio", "gradient", "zeros", "largest", "output", "entropy"]
    assert lines[-1] == f"  {change['text']}"


def test_a_rank_that_measures_nothing_has_its_reason_and_measured_ranks_are_stored(
    stored_history: History, place: Path
) -> None:
    training = Training(stored_history, last=40, measuring=1)  # it ends before the last step
    found = recorded(stored_history, training, place, still_seconds=0.3)
    assert found[1] == UNOBSERVED
    assert isinstance(found[0], Path)
    assert Layers.summarize({0: found[0]})["ranks"]["0"]["steps"][-1] == 40


def test_ranks_beyond_the_most_are_refused(stored_history: History) -> None:
    assert list(recorder(stored_history, Training(stored_history)).refuse(CAPTURE, [*range(RANKS + 2)])) == [
        RANKS,
        RANKS + 1,
    ]
