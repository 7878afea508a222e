"""Processes that train on this machine, for collectors that read about them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wire_messages import OWN, FakeSession, RunsHarness

from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.session import process_of

if TYPE_CHECKING:
    from training.conftest import Process


def speaker(process: Process) -> FakeSession:
    """Return a session of that process."""
    return FakeSession(pid=process.identity["pid"], start=process.identity["start"])


def members(house: RunsHarness) -> tuple[RankProcess, ...]:
    """Return the processes that train, after a tick."""
    house.wait(0.0)
    return house.processes.get()


def test_a_rank_of_this_machine_is_a_member_until_it_ends(house: RunsHarness) -> None:
    session = FakeSession("id-7", rank=3, local_rank=1, world=4, local_world=2, job_id="99", gpus=("GPU-aa",))
    house.hello(session)
    assert members(house) == (RankProcess("train", "id-7", 0, 3, 1, "99", os.getpid(), ("GPU-aa",), owner=OWN.id),)
    house.bye(session)
    assert members(house) == ()


def test_a_rank_of_another_machine_is_none(house: RunsHarness) -> None:
    house.hello(FakeSession(boot="another"))
    assert members(house) == ()


def test_a_member_bears_the_name_that_its_run_is_exported_under(house: RunsHarness) -> None:
    house.hello(FakeSession("id-1"))
    house.hello(FakeSession("id-2"))
    assert [one.run for one in members(house)] == ["train", "train-2"]


def test_a_process_that_is_killed_is_a_member_no_more(house: RunsHarness, process: Process) -> None:
    house.hello(speaker(process))
    assert [one.pid for one in members(house)] == [process.identity["pid"]]
    process.kill()
    house.wait(4.0)
    assert members(house) == ()


def test_the_pid_of_a_process_in_another_namespace_is_not_reported(house: RunsHarness) -> None:
    house.hello(FakeSession(pid=2**22 + 7, start=1))
    assert [one.pid for one in members(house)] == [0]


def test_a_pid_that_the_connection_reveals_later_is_reported_then(house: RunsHarness, process: Process) -> None:
    inside = house.greet(pid=2**22 + 7, start=1)
    known = speaker(process)
    known.id = inside.id
    house.runs.watch(process_of(known.identity))
    house.hello(known)
    assert [one.pid for one in members(house)] == [process.identity["pid"]]


def test_a_hello_that_comes_again_names_other_gpus_and_changes_nothing_else(house: RunsHarness) -> None:
    first = FakeSession(gpus=("0",))
    house.hello(first)
    again = FakeSession(gpus=("GPU-aa",), rank=5, local_rank=5)
    again.id = first.id
    house.hello(again)
    assert [(one.rank, one.local_rank, one.gpus) for one in members(house)] == [(0, 0, ("GPU-aa",))]
