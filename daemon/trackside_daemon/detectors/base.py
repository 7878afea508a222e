"""What a detector is given and what it says.

A detector follows one key of one rank. It is given the key's samples in their order, many at once or one by one, and says
the same either way: what it finds at a sample depends on that sample and those before it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.model.finding import Severity


class Column(NamedTuple):
    """Samples of one key, in the order in which they were pushed.

    Attributes:
        steps: The training's own count, which may fall when it is restarted from a checkpoint.
        times: Unix seconds.
        values: As pushed: NaN and infinities too.
    """

    steps: Sequence[int]
    times: Sequence[float]
    values: Sequence[float]


class Detection(NamedTuple):
    """Something is wrong, or is no longer.

    Attributes:
        alert: Its name, such as ``LossSpike``.
        severity: How bad it is.
        at: The index of the sample in the column at which it shows.
        text: What it is, how bad and since when, in one sentence with numbers; where it is is added by others.
        over: It is not so any more; found again it is a new one.
    """

    alert: str
    severity: Severity
    at: int
    text: str
    over: bool = False


class Context:
    """What is known of a rank beside the key that a detector follows; kept by whoever feeds the detectors.

    Attributes:
        phase: The innermost phase that the rank is in; empty outside. A daemon knows it of what a training tells of its
            steps' durations only: those that it measures itself are without pauses already.
        derived: Steps' durations are derived from when they were pushed.
        learning_rate: The last finite one; None before the first.
        rates: The same by step, of those pushed together with what is looked at, and of some before.
        rates_raised: The steps of late at which it rose by more than a tenth at once.
        gradient: The last finite norm of the gradients over its own median of late; None before there is one.
        gradients: The same by step, of those pushed together with what is looked at, and of some before.
    """

    __slots__ = (
        "derived",
        "gradient",
        "gradients",
        "learning_rate",
        "phase",
        "rates",
        "rates_raised",
    )

    def __init__(self) -> None:
        self.phase = ""
        self.derived = False
        self.learning_rate: float | None = None
        self.rates: dict[int, float] = {}
        self.rates_raised: list[int] = []
        self.gradient: float | None = None
        self.gradients: dict[int, float] = {}

    def rate_at(self, step: int) -> float | None:
        """The learning rate at a step that is not long ago; None before the first."""
        return next((rate for since, rate in reversed(self.rates.items()) if since <= step), None)


class Detector(Protocol):
    """Follows one key of one rank.

    Attributes:
        alerts: What it can find, by name.
    """

    alerts: tuple[str, ...]

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """What is found in the samples that come next."""
