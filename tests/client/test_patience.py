"""The time for which a client waits for an answer."""

from __future__ import annotations

from itertools import pairwise

from trackside.transport.patience import ANSWER_SECONDS, FACTORS, LONGEST_SECONDS, Patience


def waits() -> list[float]:
    patience, found = Patience(), []
    while patience.seconds < LONGEST_SECONDS:
        found.append(patience.seconds)
        patience.grow()
    patience.grow()
    assert patience.seconds == LONGEST_SECONDS
    return found


def test_each_wait_in_vain_makes_the_next_one_longer_and_differs_between_clients() -> None:
    every = [waits() for _ in range(20)]
    assert {found[0] for found in every} == {ANSWER_SECONDS}
    assert len({found[1] for found in every}) > 1
    for found in every:
        assert all(FACTORS[0] <= after / before <= FACTORS[1] for before, after in pairwise(found))


def test_progress_makes_the_next_wait_short_again() -> None:
    patience = Patience()
    patience.grow()
    patience.reset()
    assert patience.seconds == ANSWER_SECONDS
