"""Hashes of what ranks share: the rank that stands alone is named, and ranks that cannot be compared are not."""

from __future__ import annotations

from typing import Any

import pytest
from detectors.running import ID, Running
from session_records import batch_ingested

from trackside.wire import TensorHash
from trackside_daemon.detectors.replicas import LEAST
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert
from trackside_daemon.model.session import SessionRef

TENSOR = "blocks.3.mlp.weight"


class Ranks(Running):
    """A run whose ranks send hashes."""

    def __init__(self, ranks: int, **more: Any) -> None:
        super().__init__(ranks, **more)
        self.number = ranks
        self.push(0, *range(ranks))

    def send(self, rank: int, step: int, value: int, name: str = TENSOR, **more: Any) -> None:
        """Send a hash of a rank."""
        about = {"part": 0, "parts": 1, "count": step + 1, "group": 7, "ranks": self.number, "time": 0, **more}
        one = TensorHash(name=name, value=value, step=step, **about)
        ref = SessionRef(bytes(16), ID, "net", self.attempt, rank)
        self.accept(Batch("ingest", records=[batch_ingested(ref, 1, hashes=[one])]))

    def compare(self, step: int, *values: int, **more: Any) -> list[Finding]:
        """Send the hashes of all ranks, let a tick pass, and return all findings so far that differ."""
        for rank, value in enumerate(values):
            self.send(rank, step, value, **more)
        self.wait(1)
        return self.findings_of("ReplicasDiffer")


def test_the_rank_that_stands_alone_is_named_with_tensor_and_steps_until_it_is_equal_again() -> None:
    run = Ranks(4)
    assert run.compare(10, 5, 5, 5, 5) == []
    (found,) = run.compare(20, 5, 5, 9, 5)
    assert found.summary == (
        f"rank 2 of run net differs from the 3 others at step 20, in the parameter {TENSOR}; at step 10 they were equal"
    )
    assert (found.severity, dict(found.labels)["rank"]) == ("warning", "2")
    assert found.evidence == {"tensor": TENSOR, "part": 1, "step": 20, "equal_at_step": 10, "ranks_alone": [2]}
    assert "test that GPU" in found.description
    assert len(run.compare(30, 6, 6, 8, 6)) == 1  # the same trouble
    run.compare(40, 4, 4, 4, 4)
    (over,) = run.findings_of("ReplicasDiffer", over=True)
    assert over.labels == found.labels  # they identify the alert that ends


@pytest.mark.parametrize(
    ("values", "more", "who", "why"),
    [
        ((1, 2), {}, "ranks 0 and 1 of run net differ at", "Test both GPUs"),
        ((1, 2, 3, 4), {}, "4 ranks of run net differ from each other at", "used past DDP"),
        ((1, 1, 2, 2), {}, "4 ranks of run net differ from each other at", "used past DDP"),
        ((1, 1, 1, 2, 3), {}, "ranks 3, 4 of run net differ from the 3 others at", "test that GPU"),
        ((1, 2, 3), {"buffer": True}, f"in the buffer {TENSOR}", "broadcast_buffers=False"),
        ((1, 1, 2), {"part": 3, "parts": 40}, f"in part 4 of 40 of the parameter {TENSOR}", "test that GPU"),
    ],
)
def test_the_likely_cause_is_named(values: tuple[int, ...], more: dict[str, Any], who: str, why: str) -> None:
    run = Ranks(len(values))
    run.compare(10, *(5 for _ in values), **more)
    (found,) = run.compare(20, *values, **more)
    assert who in found.summary
    assert why in found.description


def test_ranks_that_were_never_equal_began_with_other_seeds_and_a_spread_is_critical() -> None:
    run = Ranks(3)
    (found,) = run.compare(1, 1, 2, 3)
    assert (found.severity, "its own seed" in found.description) == ("warning", True)
    found = run.compare(2, 1, 2, 3, name="head.weight")[-1]
    assert (found.severity, "and 1 more tensor: head.weight" in found.summary) == ("critical", True)


def test_a_spread_from_one_rank_to_all_makes_the_alert_of_that_rank_critical() -> None:
    run = Ranks(3)
    run.compare(1, 5, 5, 5)
    run.compare(2, 5, 5, 6)
    run.compare(3, 1, 2, 3)
    begun, worse = run.compare(4, 1, 2, 3, name="head.weight")
    assert (begun.severity, worse.severity, worse.labels) == ("warning", "critical", begun.labels)


def test_a_loss_that_is_lost_after_a_difference_makes_it_critical() -> None:
    run = Ranks(3)
    run.losses(1, float("nan"))
    assert [one.severity for one in run.compare(2, 1, 1, 3)] == ["warning"]
    run.losses(3, float("nan"))
    run.wait(1)
    assert run.findings_of("ReplicasDiffer")[-1].severity == "critical"


def test_hashes_of_other_steps_groups_and_parts_are_not_compared() -> None:
    run = Ranks(2)
    for rank in range(2):
        run.send(rank, 5, rank, count=rank)  # began to watch at another step
        run.send(rank, 6 + rank, rank, count=9)  # began to push at another one
        run.send(rank, 8, rank, group=rank)
        run.send(rank, 9, rank, part=rank, parts=2)
    run.wait(2)
    assert run.trouble == []


def test_ranks_of_other_machines_are_not_waited_for_and_late_ones_are_compared() -> None:
    run = Ranks(3)  # the group has eight ranks, of which three push to this daemon
    for rank in (0, 1):
        run.send(rank, 100, 1, ranks=8)
    run.wait(1)
    assert run.trouble == []
    run.send(2, 100, 2, ranks=8)
    run.wait(1)
    assert [dict(one.labels)["rank"] for one in run.findings_of("ReplicasDiffer")] == ["2"]


def test_a_group_of_which_this_daemon_has_some_ranks_is_compared_once_that_is_known() -> None:
    run = Ranks(4)
    for step in range(LEAST + 1):
        for rank in range(2):
            run.send(rank, step, step, ranks=128)
    run.wait(1)
    assert run.trouble == []
    assert "ranks 0 and 1 of run net differ" in run.compare(500, 1, 2, ranks=128)[0].summary


def test_what_the_last_step_shows_is_reported_at_the_end_of_the_run() -> None:
    run = Ranks(3)
    for rank in range(3):
        run.send(rank, 5, rank // 2)
    run.marks("finished")
    assert [one.over for one in run.alarms if one.alert == "ReplicasDiffer"] == [False, True]


def test_an_alert_of_an_earlier_daemon_goes_on_until_its_tensor_is_equal() -> None:
    watch = RunWatch()
    evidence = {"tensor": TENSOR, "part": 1, "step": 20, "equal_at_step": 10, "ranks_alone": [1]}
    labels = {"run": "net", "rank": "1"}
    watch.restore(Alert("ReplicasDiffer", "warning", 1.0, ID, labels, "rank 1 differs", evidence=evidence))
    run = Ranks(3, watch=watch)
    run.wait(1)
    assert [one.summary for one in run.findings_of("ReplicasDiffer")] == ["rank 1 differs"]
    run.compare(30, 1, 1, 1, name="other.weight")
    assert run.findings_of("ReplicasDiffer", over=True) == []
    run.compare(40, 1, 1, 1)
    assert [dict(one.labels) for one in run.findings_of("ReplicasDiffer", over=True)] == [labels]
