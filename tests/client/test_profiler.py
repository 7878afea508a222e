"""Profiles that the client records: they never cost the training anything but time."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import processes
import pytest
from processes import require

from trackside import process_state
from trackside.captures import kineto
from trackside.captures.answers import cancel_profile
from trackside.captures.kineto import BUSY
from trackside.captures.profiler import CANCELLED, OTHER_THREAD, _without_line, profile
from trackside.wire import ProfileQuestion

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINING = """
import sys, threading, time
import torch
import trackside
from trackside.captures import profiler
from trackside.wire import ProfileQuestion
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
began = threading.Event()
real = torch._C._autograd._enable_profiler
def noted(*given):
    real(*given)
    began.set()
torch._C._autograd._enable_profiler = noted
def step():
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.002)
def recorded(seconds):
    answers = []
    began.clear()
    thread = threading.Thread(target=lambda: answers.append(profiler.profile(ProfileQuestion(seconds))), daemon=True)
    thread.start()
    while not began.is_set():
        step()
    return answers, thread
def own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    return len(profile.key_averages()) > 0
"""
"""A training with `recorded`, which begins a profile in another thread, and `own`, a profiler of its own."""

CASES = {
    "a profiler of its own that starts meanwhile": (
        """
for _ in range(int(sys.argv[1])):
    answers, thread = recorded(1.0)
    time.sleep(0.02)
    print(own())
    while thread.is_alive():
        step()
    print(answers[0].error)
""",
        f"True\n{CANCELLED}\n",
    ),
    "a profiler of its own that is active": (
        """
for _ in range(int(sys.argv[1])):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        print(profiler.profile(ProfileQuestion(0.1)).error)
    print(own())
""",
        f"{BUSY}\nTrue\n",
    ),
    "its end": (
        """
trackside.init("ends", enabled=False)
recorded(60.0)
time.sleep(0.2)
print("ends" * int(sys.argv[1] != "0"))
""",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_training_survives(case: str, count: Callable[[int, int], int]) -> None:
    require("torch")
    script, expected = CASES[case]
    rounds = count(1, 20)
    done = processes.run([sys.executable, "-c", TRAINING + script, str(rounds)])
    assert done.returncode == 0, done.stderr
    assert done.stdout == (expected * rounds if expected is not None else "ends\n")


QUIET = """
for _ in range(2):
    answers, thread = recorded(0.05)
    while thread.is_alive():
        step()
    print(answers[0].error or "recorded")
sys.stderr.write("its own profile\\n")
own()
"""


@pytest.mark.parametrize(("level", "is_quiet"), [(None, True), ("99", True), ("0", False)])
def test_a_recording_writes_no_lines_but_those_that_the_user_wants(level: str | None, *, is_quiet: bool) -> None:
    require("torch")
    chosen = {} if level is None else {"KINETO_LOG_LEVEL": level}
    done = processes.run([sys.executable, "-c", TRAINING + QUIET], env={"PATH": "/usr/bin:/bin", **chosen})
    assert done.stdout == "recorded\nrecorded\n"
    before, _, after = done.stderr.partition("its own profile\n")
    assert (before == "") is is_quiet, before
    assert (after == "") is (level == "99"), after


def test_what_c_code_writes_while_a_recording_begins_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    def write(text: bytes) -> None:
        c = ctypes.CDLL(None)
        c.fputs(text, ctypes.c_void_p.in_dll(c, "stderr"))

    for _ in range(2):
        _without_line(lambda: write(b"one\n" + OTHER_THREAD + b" (-1 != 2)\ntwo\n"))
    write(b"after\n")
    assert capfd.readouterr().err == "one\ntwo\none\ntwo\nafter\n"


def test_without_a_tested_pytorch_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert profile(ProfileQuestion(1.0)).error == "it has not imported PyTorch"
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.7.1"))
    assert "2.7.1 is not one of the tested versions" in profile(ProfileQuestion(1.0)).error
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    assert profile(ProfileQuestion(1.0)).error.startswith("PyTorch cannot be profiled from another thread: ")


def test_the_daemon_can_cancel_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock(__version__="2.13.0")
    torch.autograd.profiler._is_profiler_enabled = False
    torch._C._autograd._enable_profiler.side_effect = lambda *_: cancel_profile()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(kineto, "_ending", [0])  # which the end of a test's sender sets
    assert profile(ProfileQuestion(1000.0)).error == CANCELLED
    assert torch._C._autograd._disable_profiler.called


def test_a_process_that_ends_begins_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock(__version__="2.13.0")
    torch.autograd.profiler._is_profiler_enabled = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(kineto, "_ending", [0])
    monkeypatch.delenv("KINETO_IPC_SOCKET_DIR", raising=False)
    kineto.cancel_recording()
    assert profile(ProfileQuestion(1.0)).error == CANCELLED
    assert not torch._C._autograd._enable_profiler.called


def test_ctrl_c_at_the_end_leaves_no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[bool] = []
    monkeypatch.setattr(process_state, "cancel_recording", lambda: cancelled.append(True))
    process = process_state.ProcessState()
    sender: Any = MagicMock()
    sender.stop.side_effect = KeyboardInterrupt
    process._senders["endpoint"] = sender
    with pytest.raises(KeyboardInterrupt):
        process.exit()
    assert cancelled == [True]
