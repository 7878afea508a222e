"""The verdict on a run that hangs, from the answers of its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from trackside.wire import Child, Flight, FlightEntry, FlightGroup
from trackside_daemon.captures.hang.cases import Absent, RankDump, rank_dump
from trackside_daemon.captures.hang.verdict import HangVerdict, verdict

STACK = ["/usr/lib/python3.11/runpy.py:9 run", "/home/me/train.py:12 main", "/x/site-packages/torch/d.py:7 all_reduce"]


def called(
    last: int,
    *,
    at: str = "all_reduce",
    shape: int = 4,
    pending: bool = True,
    name: str = "default_pg",
    stack: list[str] | None = None,
    state: str = "scheduled",
    ranks: list[int] | None = None,
) -> RankDump:
    """Return a rank that has called collectives up to *last*, which is another one than those before if *at* says so."""
    entries = [FlightEntry(number, "all_reduce", "completed", "[4] Float", 4, 60.0) for number in range(1, last)]
    ended = state if pending else "completed"
    entries.append(FlightEntry(last, at, ended, f"[{shape}] Float", shape, 30.0))
    group = FlightGroup("gloo", "0", name, ranks or [], entries)
    return rank_dump(Flight({"MainThread 1": stack or STACK}, [group]))


def judged(dumps: dict[int, RankDump], subject: int | None = None, **absent: set[int]) -> HangVerdict:
    ended, silent, unseen = (frozenset(absent.get(name, ())) for name in ("ended", "silent", "unseen"))
    found = verdict(dumps, Absent(ended, silent, unseen), subject)
    assert found is not None
    return found


LOADING = ["/home/me/train.py:12 main", "/home/me/loader.py:88 read", "/usr/lib/python3.11/selectors.py:415 select"]


def test_the_rank_that_never_arrived_is_named_with_its_line() -> None:
    found = judged({0: called(32), 1: called(31, pending=False, stack=LOADING), 2: called(32), 3: called(32)})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (1,), (0, 2, 3))
    assert (found.group, found.sequence, found.operation) == ("default_pg", 32, "all_reduce")
    assert found.places["1"] == "loader.py:88 in read"
    assert found.text == (
        "Rank 1 never arrived at all_reduce number 32 of default_pg: outside any collective, rank 1 is at loader.py:88 in "
        "read (selectors.py:415 in select); ranks 0, 2 and 3 only wait."
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_with_another_operation_is_named(ranks: int) -> None:
    dumps = {rank: called(32, at="broadcast" if rank == 1 else "all_reduce") for rank in range(ranks)}
    found = judged(dumps)
    assert (found.kind, found.ranks, found.operation) == ("other_operation", (1,), "all_reduce")
    assert found.text.startswith(
        "Rank 1 called broadcast instead of all_reduce number 32 of default_pg; rank 1 is at train"
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_with_another_shape_is_named_although_the_others_went_on(ranks: int) -> None:
    dumps = {rank: called(32, shape=8) if rank == 1 else called(33) for rank in range(ranks)}
    found = judged(dumps)
    assert (found.kind, found.ranks, found.sequence) == ("other_shape", (1,), 32)
    assert "with [8] Float and the others with [4] Float" in found.text


def test_with_two_ranks_and_two_new_calls_nothing_shows_which_is_right() -> None:
    found = judged({0: called(32, shape=6), 1: called(32, shape=8)})
    assert (found.kind, found.ranks, found.waiting) == ("other_shape", (0, 1), ())
    assert found.text.startswith(
        "Rank 0 called all_reduce with [6] Float and rank 1 called all_reduce with [8] Float as number 32 of default_pg; "
        "ranks 0 and 1 are at train.py:12 in main"
    )


def test_the_tensors_of_all_gather_may_differ() -> None:
    dumps = {rank: called(32, at="all_gather", shape=4 + rank) for rank in range(3)}
    assert judged(dumps).kind == "not_finished"


def test_a_rank_that_died_comes_before_those_that_do_not_arrive_because_of_it() -> None:
    found = judged({0: called(32), 2: called(31, pending=False)}, ended={1})
    assert (found.kind, found.ranks) == ("ended", (1,))
    assert found.text == "Rank 1 has ended; all_reduce number 32 of default_pg cannot finish; rank 0 only waits."


def test_a_rank_that_does_not_answer_is_named() -> None:
    found = judged({0: called(32), 1: called(32)}, silent={2})
    assert (found.kind, found.ranks, found.silent) == ("silent", (2,), (2,))
    assert found.text.startswith("Rank 2 did not answer within 3 s: stopped, or a call holds the GIL; all_reduce")


def test_silent_ranks_have_the_known_reasons() -> None:
    absent = Absent(silent=frozenset((1, 2, 3)), reasons={1: "did not answer within 3 s: it is stopped"})
    found = verdict({0: called(32)}, absent)
    assert found is not None
    assert found.text.startswith(
        "Rank 1 did not answer within 3 s: it is stopped, ranks 2 and 3 did not answer within 3 s: stopped, or a call holds"
    )


def test_ranks_of_other_daemons_are_named_as_unseen() -> None:
    found = judged({0: called(32), 1: called(32)}, unseen={4, 5, 6, 7})
    assert (found.kind, found.ranks, found.unseen) == ("unseen", (4, 5, 6, 7), (4, 5, 6, 7))
    assert found.text.startswith("Who is missing must be among ranks 4 to 7, which this daemon does not see")
    late = judged({0: called(32), 1: called(31, pending=False)}, unseen={2, 3})
    assert late.ranks == (1,)
    assert late.text.endswith(" This daemon does not see ranks 2 and 3.")


def test_a_collective_at_which_all_arrived_is_not_finished() -> None:
    found = judged({0: called(32), 1: called(32)})
    assert (found.kind, found.ranks, found.waiting) == ("not_finished", (), (0, 1))
    started = judged({0: called(32, state="started"), 1: called(32), 2: called(32, state="started")})
    assert (started.ranks, started.waiting) == ((1,), (0, 2))
    assert "has not begun on rank 1" in started.text


def test_a_rank_that_waits_in_another_group_is_no_cause() -> None:
    """Rank 1 is missing in the world, since it waits in its pair for rank 2, which is outside."""
    world = {rank: called(32) for rank in (0, 3)}
    pair = rank_dump(
        Flight(
            {"MainThread 1": STACK},
            [FlightGroup("gloo", "5", "pair", [1, 2], [FlightEntry(7, "all_gather", "scheduled", "", 0, 40.0)])],
        )
    )
    found = judged({**world, 1: pair, 2: called(31, pending=False, stack=LOADING)})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (2,), (0, 1, 3))


def test_ranks_that_wait_for_each_other_in_two_groups() -> None:
    def waits(name: str) -> RankDump:
        group = FlightGroup("nccl", name, f"group_{name}", [0, 1], [FlightEntry(1, "all_reduce", "started")])
        return rank_dump(Flight({}, [group]))

    found = judged({0: waits("a"), 1: waits("b")})
    assert (found.kind, found.ranks) == ("crossed", ())
    assert "all_reduce of group_a and all_reduce of group_b" in found.text


def test_a_receive_waits_for_its_sender() -> None:
    entry = FlightEntry(3, "recv 1<-0", "started", "[4] Float", 4, 30.0, p2p=True)
    receiver = rank_dump(Flight({}, [FlightGroup("nccl", "7", "pipe", [2, 5], [entry])]))
    found = judged({5: receiver, 2: called(31, pending=False, stack=LOADING)})
    assert (found.kind, found.ranks, found.waiting, found.operation) == ("never_arrived", (2,), (5,), "recv 1<-0")


def test_ranks_outside_any_collective_have_their_lines() -> None:
    alone = rank_dump(Flight({"MainThread 1": LOADING}))
    found = judged({0: alone})
    assert (found.kind, found.ranks) == ("outside", (0,))
    assert found.text == "Rank 0 is at loader.py:88 in read (selectors.py:415 in select)."
    assert judged({0: alone, 1: alone}).text.startswith("Ranks 0 and 1 are at loader.py:88")
    assert judged({0: called(3, pending=False), 1: alone}, subject=1).ranks == (1,)


def test_a_silent_rank_is_named_without_any_collective() -> None:
    assert judged({}, silent={0}).text == "Rank 0 did not answer within 3 s: stopped, or a call holds the GIL."
    assert verdict({}, Absent()) is None


def test_what_a_run_writes_cannot_control_a_terminal_or_fill_an_alert() -> None:
    evil = "\x1b[2J\n" + "x" * 100_000
    entries = [FlightEntry(1, evil, evil, evil, -1), FlightEntry(-(2**62), evil, "started", age=float("nan"))]
    dump = rank_dump(Flight({evil: [evil]}, [FlightGroup(evil, evil, evil, [-1, 2**62], entries)] * 1000))
    found = judged({0: dump, 1: called(31, pending=False), 2: rank_dump(Flight({evil: []}))})
    assert len(found.text) < 2000
    assert found.text.isprintable()
    assert all(len(place) < 500 and place.isprintable() for place in found.places.values())


def test_progress_shows_in_calls_that_begin_or_end() -> None:
    assert called(32).progress() == called(32).progress()
    assert called(32).progress() != called(32, pending=False).progress()
    assert called(32).progress() != called(33).progress()


LOADER = [
    "/home/me/train.py:9 main",
    "/x/site-packages/torch/utils/data/dataloader.py:7 _try_get_data",
    "/usr/lib/python3.11/selectors.py:415 select",
]
FORKED = "/usr/lib/python3.11/multiprocessing/process.py:314 _bootstrap"
ITEM = [FORKED, "/x/site-packages/torch/utils/data/_utils/worker.py:3 _worker_loop", "/home/me/data.py:88 __getitem__"]
IDLE = [*ITEM[:2], "/usr/lib/python3.11/multiprocessing/queues.py:113 get"]
PUT = [FORKED, "/home/me/data.py:33 produce", "/usr/lib/python3.11/multiprocessing/queues.py:89 put"]


def child(pid: int, frames: list[str], state: str = "S", **more: Any) -> Child:
    return Child(pid, "pt_data_worker", state, threads={"MainThread 0": frames} if frames else {}, **more)


@pytest.mark.parametrize(
    ("children", "text"),
    [
        (
            [child(7, ITEM, waits="futex_do_wait"), child(8, IDLE)],
            "worker 7 waits for a lock at data.py:88 in __getitem__",
        ),
        ([child(7, ITEM, "R"), child(8, ITEM, "R")], "workers 7 and 8 compute at data.py:88 in __getitem__"),
        ([child(7, ITEM, waits="hrtimer_nanosleep")], "worker 7 sleeps at data.py:88 in __getitem__"),
        ([child(7, ITEM, "D")], "worker 7 waits for a device or a file system at data.py:88 in __getitem__"),
        ([child(7, ITEM, waits="pipe_read")], "worker 7 is at data.py:88 in __getitem__"),
        ([child(7, PUT)], "worker 7 waits for room in a queue that is full at data.py:33 in produce"),
        ([child(7, [], "T")], "worker 7 is stopped, and `kill -CONT 7` continues it"),
        (
            [child(7, [], "Z", ended=9), child(8, ITEM, "R")],
            "worker 7 was killed by SIGKILL, worker 8 computes at data.py:88 in __getitem__",
        ),
        ([child(7, [], "Z", ended=3 << 8)], "worker 7 has ended with status 3"),
        ([child(7, [], "Z", ended=(1 << 40) + 9)], "worker 7 was killed by SIGKILL"),
        ([child(7, [], "X")], "worker 7 is in state X"),
        ([child(7, [], "")], "worker 7 is in state "),
        ([child(number, IDLE) for number in range(5)], "workers 0, 1 and 3 more wait for work"),
        ([Child(7, "sleep", "S", "hrtimer_nanosleep")], "child sleep 7 sleeps"),
    ],
)
def test_what_the_workers_do_for_which_a_rank_waits_is_in_the_text(children: list[Child], text: str) -> None:
    found = judged({0: rank_dump(Flight({"MainThread 1": LOADER}, children=children))})
    assert found.text == f"Rank 0 is at train.py:9 in main (selectors.py:415 in select): its {text}."


def test_the_client_is_no_code_of_the_user() -> None:
    stack = [LOADER[0], "/home/me/src/trackside/auto/pytorch.py:236 next_batch", *LOADER[1:]]
    assert rank_dump(Flight({"MainThread 1": stack})).place == "train.py:9 in main"


def test_the_workers_of_a_rank_that_does_not_wait_for_them_count_if_they_were_killed() -> None:
    children = [child(7, ITEM, "R"), child(8, [], "Z", ended=9)]
    found = judged({0: rank_dump(Flight({"MainThread 1": LOADING}, children=children))})
    assert found.text.endswith("in select): its worker 8 was killed by SIGKILL.")
