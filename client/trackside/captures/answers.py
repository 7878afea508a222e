"""The answers of a training process to the daemon's questions, by the kind of the question."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from trackside.captures.batches import batches
from trackside.captures.children import child_stacks
from trackside.captures.flight_recorder import flight
from trackside.captures.kineto import optimizer_steps
from trackside.captures.memory import memory
from trackside.interpreter import stacks
from trackside.wire import Body, MemorySnapshot, ModuleCalls, ModulesQuestion, Profile, ProfileQuestion, Stacks


class AnswerKind(NamedTuple):
    """The answer to one kind of questions."""

    kind: str  # the kind of its message
    # Returns its body from that of the question, which is None for a kind without one; that of batches from those kept.
    make: Callable[[Any], Body]
    is_slow: bool = False  # it takes longer than a few milliseconds, so that a thread of its own makes it
    # Returns the body of a slow one that cannot be made, from the reason in one line, such as that its thread makes
    # another; None for one that has a thread for its kind alone.
    refuse: Callable[[str], Body] | None = None


OTHER_CAPTURE = "its client makes another capture"


def profile(question: ProfileQuestion) -> Profile:
    """Record a profile."""
    from trackside.captures import profiler  # which the fewest processes need

    return profiler.profile(question)


def modules(question: ModulesQuestion) -> ModuleCalls:
    """Record the calls of modules."""
    from trackside.captures import modules as recorder

    return recorder.modules(question)


def cancel_profile() -> None:
    """End the profile, or the calls of modules, that this process records; its answer has the reason."""
    if (recorder := sys.modules.get("trackside.captures.modules")) is not None:
        recorder.end()
    if (profiler := sys.modules.get("trackside.captures.profiler")) is not None:
        profiler.end()


ANSWERS = {
    "stacks?": AnswerKind("stacks", lambda _: Stacks({**stacks(), **child_stacks()})),
    "flight?": AnswerKind("flight", lambda _: flight()),
    "steps?": AnswerKind("steps", lambda question: optimizer_steps(question.seconds)),
    "profile?": AnswerKind("profile", profile, is_slow=True, refuse=lambda why: Profile(error=why)),
    "modules?": AnswerKind("modules", modules, is_slow=True, refuse=lambda why: ModuleCalls(error=why)),
    "memory?": AnswerKind("memory", lambda _: memory(), is_slow=True, refuse=lambda why: MemorySnapshot([], [why])),
    "batches?": AnswerKind("batches", batches, is_slow=True),
    "ping": AnswerKind("pong", lambda _: None),
}
