"""Model with the timing of a training that computes nothing: its loss follows a curve, and reacts to unusual text."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import trackside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from trackside_daemon.demo.training_text import Text

# Seconds per step.
FORWARD = 0.025
BACKWARD = 0.05
OPTIMIZER = 0.01

FIRST_LOSS = 4.1  # loss of a guess among some 60 characters, in nats per character
LAST_LOSS = 1.1  # lower bound of the loss, in nats per character
DECAY_SUM = 0.3  # sum of learning rates after which much of the decline is over: about 150 steps

NOISE = 0.01
DEVICE_FLOPS = 989e12  # peak of an H100 in bfloat16, from its data sheet


class SimulatedModel:
    """Loss curve and timing of a language model on an H100.

    The loss falls by a power law of the sum of learning rates. It is higher for batches with rarer characters.
    A learning rate above 1 makes the weights grow without bounds, and the loss grows with their square.

    Attributes:
        random: Source of noise.
        context: Characters that the last prediction of a window uses; a window has one more.
        batch: Windows per step.
        tokens: Predictions per step.
        size: Number of parameters.
    """

    context = 2048
    batch = 8
    tokens = batch * context
    size = 350_000_000

    def __init__(self, corpus: Text, random: Random) -> None:
        codes = range(len(corpus.vocabulary))
        self.random = random
        self._information = [-math.log((corpus.train.count(code) + 1) / len(corpus.train)) for code in codes]
        self._mean_information_of_text = self._mean_information([corpus.train])
        self._learning_rate_sum = 0.0
        self._weights = 1.0

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Sleep for the time of a step; return the loss in nats per character, and the unclipped gradient norm."""
        self._sleep(FORWARD)
        loss = self._loss(windows)
        with trackside.phase("backward"):
            self._sleep(BACKWARD)
            norm = loss / LAST_LOSS * 0.3 * self.random.lognormvariate(0, 0.1)
        with trackside.phase("optimizer"):
            self._sleep(OPTIMIZER)
            self._learning_rate_sum += learning_rate
            self._weights *= max(1.0, learning_rate)
        return loss, norm

    def loss(self, windows: Sequence[bytes]) -> float:
        """Sleep for the time of a forward pass; return the loss in nats per character."""
        self._sleep(FORWARD / 2)
        return self._loss(windows)

    def _loss(self, windows: Sequence[bytes]) -> float:
        curve = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * math.pow(1 + self._learning_rate_sum / DECAY_SUM, -0.7)
        surprise = self._mean_information(windows) - self._mean_information_of_text
        return (curve * self.random.gauss(1, NOISE) + max(0.0, surprise)) * self._weights * self._weights

    def _mean_information(self, windows: Sequence[bytes]) -> float:
        """Return the mean information of the characters, in nats, from their frequencies in the text."""
        codes = b"".join(windows)
        return sum(codes.count(code) * information for code, information in enumerate(self._information)) / len(codes)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds * self.random.lognormvariate(0, 0.05))


def accuracy(loss: float) -> float:
    """Return about the fraction of characters that a model with this loss predicts."""
    return math.exp(-0.4 * loss)


def utilization(model: SimulatedModel, seconds: float) -> float:
    """Return the model FLOPs utilization (MFU) of a step: six operations per parameter and token, over the peak."""
    return 6 * model.size * model.tokens / seconds / DEVICE_FLOPS
