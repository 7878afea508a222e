"""The hook that counts optimizer steps, and has PyTorch count them only for a time."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trackside.captures import kineto
from trackside.captures.kineto import StepCounter
from trackside.wire import OptimizerSteps


def test_pytorch_counts_the_steps_of_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls, counter = 100.0, [], StepCounter()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    step = counter.hook(lambda: calls.append(now))
    step(None, (), {})
    counter.expire()
    step(None, (), {})
    assert not calls
    assert counter.ask(10.0) == (2, 0)
    step(None, (), {})
    now = 105.0
    counter.ask(1.0)  # which does not shorten the time
    now = 109.0
    counter.expire()
    step(None, (), {})
    now = 111.0
    counter.expire()
    step(None, (), {})
    assert calls == [100.0, 109.0]
    assert counter.ask(1.0) == (3, 2)


@pytest.mark.parametrize(("tracked", "count"), [(-1, 2), (4, 6)])
def test_steps_are_those_that_pytorch_has_skipped_and_those_that_it_tracks(
    monkeypatch: pytest.MonkeyPatch, tracked: int, count: int
) -> None:
    counter = StepCounter()
    step = counter.hook(lambda: None)
    step(None, (), {})
    step(None, (), {})
    profiler = SimpleNamespace(KinetoStepTracker=SimpleNamespace(current_step=lambda: tracked))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    monkeypatch.setattr(kineto, "step_counter", counter)
    assert kineto.optimizer_steps(10.0) == OptimizerSteps(count, 2)


@pytest.mark.parametrize(("daemon", "replaced"), [("1", True), ("", False)])
def test_the_hook_of_pytorch_is_replaced_only_where_pytorch_asks_a_daemon(
    monkeypatch: pytest.MonkeyPatch, daemon: str, replaced: bool
) -> None:
    def of_pytorch() -> None: ...

    hooks: dict[int, Any] = {7: of_pytorch}
    profiler = SimpleNamespace(_optimizer_post_hook=of_pytorch)
    steps = SimpleNamespace(profiler=SimpleNamespace(_kineto_step=lambda: None))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(profiler=profiler, autograd=steps))
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", SimpleNamespace(_global_optimizer_post_hooks=hooks))
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    assert kineto.count_cheaply()
    assert (hooks[7] is not of_pytorch) == replaced
