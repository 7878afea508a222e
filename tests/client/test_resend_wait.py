"""The time for which a client waits for an answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trackside.transport.resend_wait import (
    ANSWER_SECONDS,
    FACTORS,
    LONGEST_SECONDS,
    LONGEST_SILENT_SECONDS,
    ResendWait,
)


def waits() -> list[float]:
    wait, found = ResendWait(), []
    while wait.seconds < LONGEST_SECONDS:
        found.append(wait.seconds)
        wait.grow()
    wait.grow()
    assert wait.seconds == LONGEST_SECONDS
    return found


def test_each_wait_in_vain_makes_the_next_one_longer_and_differs_between_clients() -> None:
    every = [waits() for _ in range(20)]
    assert {found[0] for found in every} == {ANSWER_SECONDS}
    assert len({found[1] for found in every}) > 1
    for found in every:
        assert all(FACTORS[0] <= after / before <= FACTORS[1] for before, after in pairwise(found))


def test_progress_makes_the_next_wait_short_again() -> None:
    wait = ResendWait()
    wait.grow()
    wait.reset()
    assert wait.seconds == ANSWER_SECONDS


@pytest.mark.parametrize("longest", [LONGEST_SECONDS, LONGEST_SILENT_SECONDS])
def test_the_wait_is_as_long_as_the_daemon_shows_that_it_needs_up_to_its_own_limit(longest: float) -> None:
    wait = ResendWait(longest=longest)
    wait.reset(0.7 * longest)
    assert wait.seconds == 0.7 * longest
    wait.reset(3 * longest)
    wait.grow()
    assert wait.seconds == longest, "it grows no further, and gets no shorter in vain"
    wait.reset(0.1)
    assert wait.seconds == ANSWER_SECONDS
