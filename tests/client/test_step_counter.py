"""The hook that counts optimizer steps, and has PyTorch count them only for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trackside.captures.kineto import StepCounter

if TYPE_CHECKING:
    import pytest


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
