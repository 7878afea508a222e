"""Liveness of real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside_daemon.training.liveness import Liveness

if TYPE_CHECKING:
    from pathlib import Path

    from trackside.wire import Identity

HERE = FakeSession().identity


def of(process: Any, **more: Any) -> Identity:
    return replace(HERE, **{**process.identity, **more})


@pytest.mark.parametrize("reap", [True, False], ids=["", "zombie"])
def test_a_process_is_gone_once_it_was_killed_also_as_a_zombie(process: Any, reap: bool) -> None:
    assert Liveness().is_gone(of(process)) is False
    process.kill(reap=reap)
    assert Liveness().is_gone(of(process)) is True


def test_a_pid_that_another_process_has_by_now_is_gone(process: Any) -> None:
    assert Liveness().is_gone(of(process, start=process.identity["start"] - 1)) is True


@pytest.mark.parametrize("elsewhere", [{"boot": "another"}, {"boot": ""}, {"start": 0}])
def test_the_end_of_a_process_elsewhere_is_unknown(process: Any, elsewhere: dict[str, Any]) -> None:
    assert Liveness().is_gone(of(process, **elsewhere)) is None


@pytest.mark.parametrize("pid", [0, -1, 2**63 - 1])
def test_a_pid_that_cannot_be_is_gone(pid: int) -> None:
    assert Liveness().is_gone(replace(HERE, pid=pid)) is True


def test_a_process_may_call_itself_what_it_likes(tmp_path: Path) -> None:
    boot = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot\n")
    (tmp_path / "7").mkdir()
    name = "训练进程 ) R".encode()[:15]  # the kernel cuts names, also in the middle of a character
    (tmp_path / "7" / "stat").write_bytes(b"7 (" + name + b") S " + b"1 " * 18 + b"42 0\n")
    liveness = Liveness(tmp_path)
    assert liveness.is_gone(replace(HERE, pid=7, start=42, boot="boot")) is False
    assert liveness.is_gone(replace(HERE, pid=7, start=41, boot="boot")) is True


def test_without_proc_the_end_is_unknown(tmp_path: Path) -> None:
    assert Liveness(tmp_path).is_gone(HERE) is None


@pytest.mark.parametrize(
    ("killed", "boot", "silence", "lost"),
    [
        *((True, {}, seconds, lost) for seconds, lost in ((0.0, False), (2.9, False), (3.0, True), (100.0, True))),
        (False, {}, 1e6, False),
        *((False, {"boot": "another"}, seconds, lost) for seconds, lost in ((3.0, False), (29.9, False), (30.0, True))),
    ],
)
def test_a_process_that_is_gone_is_lost_after_three_silent_seconds_and_one_elsewhere_after_thirty(
    process: Any, killed: bool, boot: dict[str, str], silence: float, lost: bool
) -> None:
    if killed:
        process.kill()
    assert Liveness().is_lost(of(process, **boot), silence) is lost
