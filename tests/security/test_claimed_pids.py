"""A hello may name any process. Only the connection, or the owner of the process, shows whose it is."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE
from training.conftest import start_of
from wire_messages import OWN, FakeSession, RunsHarness

from trackside_daemon.model.session import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def victim() -> Iterator[dict[str, Any]]:
    """The pid and the start time of a process, which anybody can read."""
    process = subprocess.Popen(["sleep", "1000"])
    yield {"pid": process.pid, "start": start_of(process.pid)}
    process.kill()
    process.wait(DEADLINE)


@pytest.mark.parametrize("owner", [Owner("uid:61033", "mallory"), Owner("key:laptop", "laptop"), Owner()])
def test_a_claimed_process_of_another_user_is_not_measured_followed_or_ended(
    victim: dict[str, Any], owner: Owner
) -> None:
    house = RunsHarness()
    speaker = FakeSession(**victim)
    session, batches = house.runs.open(None, speaker.hello(), house.now, owner=owner)
    assert session is not None
    house.accept(batches)
    house.wait(0.0)
    assert [one.pid for one in house.processes.get()] == [0]


def test_a_process_of_the_owner_is_measured_also_if_the_connection_does_not_identify_it(victim: dict[str, Any]) -> None:
    house = RunsHarness()
    session, batches = house.runs.open(None, FakeSession(**victim).hello(), house.now, owner=OWN)
    assert session is not None
    house.accept(batches)
    house.wait(0.0)
    assert [one.pid for one in house.processes.get()] == [victim["pid"]]
