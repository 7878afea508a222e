"""Requests of the daemon to clients, and the answers."""

from __future__ import annotations

import threading
from typing import Any

from ingest.conftest import PEER
from processes import DEADLINE
from wire_messages import FakeSession

from trackside.wire import Envelope, Profile, Stacks, encode, open_envelope
from trackside_daemon.ingest.requests import MAX_UNANSWERED, Questions, RankQuestion
from trackside_daemon.model.session import SessionRef

ASKED = SessionRef(bytes(16))


def test_a_question_waits_for_all_that_were_asked_and_no_longer() -> None:
    question = RankQuestion("ping", "run")
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.extend(question.wait(DEADLINE)))
    thread.start()
    question.begin(frozenset((0, 1)))
    question.answer(1, None)
    question.answer(0, None)
    thread.join()
    assert [one.rank for one in waiting] == [0, 1]


def test_a_question_without_a_client_to_ask_is_answered_at_once() -> None:
    question = RankQuestion("ping", "run")
    question.begin(frozenset())
    assert question.wait(DEADLINE) == []


def test_an_answer_that_is_late_of_another_kind_or_to_nothing_is_none() -> None:
    questions, question = Questions(), RankQuestion("stacks?", "run")
    number = questions.number(question, ASKED)
    question.begin(frozenset((0,)))
    questions.answered("pong", number, ASKED.id, None)
    questions.answered("stacks", number + 1, ASKED.id, Stacks({}))
    questions.answered("stacks", number, b"another session", Stacks({"forged": []}))
    assert question.wait(0) == []
    questions.answered("stacks", number, ASKED.id, Stacks({}))
    questions.answered("stacks", number, ASKED.id, Stacks({"again": []}))
    assert [one.body for one in question.wait(0)] == [Stacks({})]


def test_so_many_questions_wait_for_answers_and_no_more() -> None:
    questions, question = Questions(), RankQuestion("ping", "run")
    first = questions.number(question, ASKED)
    for _ in range(MAX_UNANSWERED):
        questions.number(question, ASKED)
    question.begin(frozenset((0,)))
    questions.answered("pong", first, ASKED.id, None)
    assert question.wait(0) == []


def test_of_a_run_those_are_asked_that_speak_and_their_answers_come_back(desk: Any) -> None:
    ranks = [FakeSession(rank=rank, world=2, local_world=2) for rank in range(2)]
    for session in ranks:
        desk.greet(session)
    question = RankQuestion("stacks?", ranks[0].identity.run)
    asked = [(frames[0], open_envelope(frames[1:])) for frames in desk.sessions.ask(question, desk.house.now)]
    assert [(peer, envelope.kind, envelope.session) for peer, envelope in asked] == [
        (PEER, "stacks?", session.id) for session in ranks
    ]
    for (_, envelope), session in zip(asked, ranks, strict=True):
        frames = encode(
            Envelope("stacks", session.id, envelope.number), Stacks({"MainThread": [f"rank {session.identity.rank}"]})
        )
        assert desk.receive(*frames) == []
    assert [one.body.threads["MainThread"] for one in question.wait(0)] == [["rank 0"], ["rank 1"]]


def test_only_the_ranks_that_are_named_are_asked(desk: Any) -> None:
    ranks = [FakeSession(rank=rank, world=3, local_world=3) for rank in range(3)]
    for session in ranks:
        desk.greet(session)
    question = RankQuestion("stacks?", ranks[0].identity.run, frozenset((2, 9)))
    asked = desk.sessions.ask(question, desk.house.now)
    assert [open_envelope(frames[1:]).session for frames in asked] == [ranks[2].id]
    assert question.asked == frozenset((2,))


def test_a_question_does_not_wait_for_a_rank_that_ends(desk: Any) -> None:
    ranks = [FakeSession(rank=rank, world=2, local_world=2) for rank in range(2)]
    for session in ranks:
        desk.greet(session)
    question = RankQuestion("profile?", ranks[0].identity.run)
    asked = desk.sessions.ask(question, desk.house.now)
    desk.receive(*ranks[0].frames("bye", ranks[0].bye("failed"), 1))
    waiting = threading.Thread(target=question.wait, args=(3600.0,), daemon=True)
    waiting.start()
    for _ in range(2):
        assert not question.wait(0)
        desk.house.wait(5.0)
        desk.sessions.tick(desk.house.now)
    envelope = open_envelope(asked[1][1:])
    desk.receive(*encode(Envelope("profile", ranks[1].id, envelope.number), Profile(b"", "no torch")))
    waiting.join(DEADLINE)
    assert not waiting.is_alive()
    assert [one.rank for one in question.wait(0)] == [1]


def test_a_silent_client_is_not_asked(desk: Any) -> None:
    session = FakeSession()
    desk.greet(session)
    desk.house.wait(11.0)
    question = RankQuestion("ping", session.identity.run)
    assert desk.sessions.ask(question, desk.house.now) == []
    assert question.asked == frozenset()
