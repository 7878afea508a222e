"""A daemon asks a training whose main thread hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

HANGING = """
import ctypes, sys, threading, trackside

def wait_for_others():
    run.push(step=4, loss=0.5)
    ctypes.CDLL(None).pause()  # a call that no other thread can look into

run = trackside.init("hanging")
run.push(step=3, loss=0.5)
threading.Thread(target=threading.Event().wait, name="reader", daemon=True).start()
wait_for_others()
"""


def test_the_stacks_of_a_training_that_hangs_are_seen(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    start_training(daemon, "-c", HANGING)
    eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="hanging"}') == 4.0)
    reported = daemon.api("runs/hanging/stacks").json()
    assert reported["silent"] == []
    ((rank, threads),) = [(one["rank"], one["threads"]) for one in reported["ranks"]]
    assert rank == 0
    calls = {name.rpartition(" ")[0]: stack for name, stack in threads.items()}
    assert [call.partition(" ")[2] for call in calls["MainThread"][-2:]] == ["<module>", "wait_for_others"]
    assert calls["reader"][-1].endswith(" wait")
    assert "trackside-sender" in calls
    assert [one["rank"] for one in daemon.api("runs/hanging/ping").json()["ranks"]] == [0]
    assert daemon.api("runs/nothing/ping").status_code == 404
