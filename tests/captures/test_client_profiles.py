"""Profiles by the client, for ranks that PyTorch's own protocol does not reach."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from processes import DEADLINE
from scripted_recorder import answering

from trackside.wire import Profile, ProfileQuestion
from trackside_daemon.captures.kinds.profile import SILENT, ClientProfiles
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.model.capture import Capture, ProfileOptions, RankAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CAPTURE = Capture("1", "id-1", 0, "profile", "person", 1.0, options=ProfileOptions(4, stacks=True))


def unreached(_run: str, _ranks: Sequence[int]) -> frozenset[int]:
    """Return the rank whose PyTorch does not ask for profiles."""
    return frozenset([0])


def recorder(*answers: RankAnswer) -> ClientProfiles:
    return ClientProfiles(unreached, answering(*answers), lambda *_: 0.1)


def test_only_ranks_that_pytorch_does_not_reach_are_asked() -> None:
    assert recorder().refuse(CAPTURE, [0, 1]) == {1: "its PyTorch records itself"}


def test_traces_are_written_and_other_ranks_have_their_reason(tmp_path: Path) -> None:
    answers = [
        RankAnswer(0, 0.1, Profile(b"\x1f\x8b")),
        RankAnswer(1, 0.1, Profile(error="it has not imported PyTorch")),
    ]
    outcomes = recorder(*answers).record(CAPTURE, [0, 1, 2], tmp_path, threading.Event())
    assert outcomes == {0: tmp_path / "trace_0.json.gz", 1: "it has not imported PyTorch", 2: SILENT}
    assert (tmp_path / "trace_0.json.gz").read_bytes() == b"\x1f\x8b"


def test_the_question_lasts_as_long_as_the_steps_and_some_more(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def ask(*given: Any, **_: Any) -> Any:
        asked.append(given)
        return frozenset(), []

    ClientProfiles(unreached, ask, lambda *_: 0.1).record(CAPTURE, [0], tmp_path, threading.Event())
    ((kind, run, ranks, question, seconds),) = asked
    assert (kind, run, ranks) == ("profile?", "id-1", frozenset([0]))
    assert question == ProfileQuestion(question.seconds, stacks=True)
    assert 0.5 < question.seconds < 1.0
    assert seconds > question.seconds


def test_a_capture_that_is_cancelled_waits_for_no_answer_and_ends_the_profiles(tmp_path: Path) -> None:
    requests, cancelled = IngestRequests(), threading.Event()
    cancelled.set()
    outcomes = ClientProfiles(unreached, requests.ask, lambda *_: DEADLINE).record(CAPTURE, [0], tmp_path, cancelled)
    requests.close()
    assert outcomes == {0: "cancelled"}
    assert [(one.kind, one.ranks) for one in requests.questions] == [
        (kind, frozenset([0])) for kind in ("profile?", "cancel?")
    ]


def test_a_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    outcomes = recorder(RankAnswer(0, 0.1, Profile(b"x"))).record(CAPTURE, [0], tmp_path / "none", threading.Event())
    assert str(outcomes[0]).endswith("no such file or directory")
