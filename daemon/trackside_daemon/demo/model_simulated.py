"""A model that takes the time of its steps and computes nothing: what it says is a curve, and how strange a batch is."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import trackside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from trackside_daemon.demo.training_text import Text

FORWARD, BACKWARD, OPTIMIZER = 0.025, 0.05, 0.01
"""Seconds of a step."""

FIRST_LOSS, LAST_LOSS = 4.1, 1.1
"""In nats a character: of a guess among some 60, and of the best that is ever reached."""

LEARNT = 0.3
"""Learning rates summed up, by which much of the way is gone: about 150 steps."""

NOISE = 0.01
DEVICE_FLOPS = 989e12
"""An H100's, in bfloat16, from its data sheet."""


class Model:
    """A language model as an H100 would train it, of which the loss curve is left.

    The loss falls by a power law of the learning rates so far, and is higher by as much as a batch's characters are rarer
    than usual. A mad learning rate makes weights grow without bounds, and the loss by their square.

    Attributes:
        random: Where noise comes from.
        context: Characters that the last prediction of a window sees; a window has one more.
        batch: Windows in a step.
        tokens: Predictions in a step.
        size: Parameters.
    """

    context = 2048
    batch = 8
    tokens = batch * context
    size = 350_000_000

    def __init__(self, corpus: Text, random: Random) -> None:
        codes = range(len(corpus.vocabulary))
        self.random = random
        self._information = [-math.log((corpus.train.count(code) + 1) / len(corpus.train)) for code in codes]
        self._usual = self._strangeness([corpus.train])
        self._learnt = 0.0
        self._weights = 1.0

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Take a step's time; its loss in nats a character, and the gradient's norm before clipping."""
        self._take(FORWARD)
        loss = self._loss(windows)
        with trackside.phase("backward"):
            self._take(BACKWARD)
            norm = loss / LAST_LOSS * 0.3 * self.random.lognormvariate(0, 0.1)
        with trackside.phase("optimizer"):
            self._take(OPTIMIZER)
            self._learnt += learning_rate
            self._weights *= max(1.0, learning_rate)
        return loss, norm

    def loss(self, windows: Sequence[bytes]) -> float:
        """Take a forward pass's time; the loss in nats a character."""
        self._take(FORWARD / 2)
        return self._loss(windows)

    def _loss(self, windows: Sequence[bytes]) -> float:
        curve = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * math.pow(1 + self._learnt / LEARNT, -0.7)
        strange = self._strangeness(windows) - self._usual
        return (curve * self.random.gauss(1, NOISE) + max(0.0, strange)) * self._weights * self._weights

    def _strangeness(self, windows: Sequence[bytes]) -> float:
        """Mean information of the characters, in nats, by how often they come in the text."""
        codes = b"".join(windows)
        return sum(codes.count(code) * information for code, information in enumerate(self._information)) / len(codes)

    def _take(self, seconds: float) -> None:
        time.sleep(seconds * self.random.lognormvariate(0, 0.05))


def accuracy(loss: float) -> float:
    """The share of characters that a model of this loss predicts, about."""
    return math.exp(-0.4 * loss)


def utilization(model: Model, seconds: float) -> float:
    """Model FLOPs utilization (MFU) of a step: six operations a parameter and token, over what the GPU could do."""
    return 6 * model.size * model.tokens / seconds / DEVICE_FLOPS
