"""The model learns, with equal results for equal seeds; its gradients are those of its loss."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.demo import model_numpy, training_text
from trackside_daemon.demo.model_numpy import NumpyModel

if TYPE_CHECKING:
    import numpy as np

CORPUS = training_text.load()
STEPS = 60


def built(*, seed: int = 0) -> NumpyModel:
    """Return a new model for the real text; skip the test if numpy is missing."""
    pytest.importorskip("numpy")
    return NumpyModel(len(CORPUS.vocabulary), seed)


def pieces(model: NumpyModel, random: Random) -> list[bytes]:
    """Return a random batch of the text to learn."""
    return training_text.windows(CORPUS.train, count=model.batch, length=model.context + 1, random=random)


def trained(model: NumpyModel, *, steps: int, learning_rate: float = 3e-3) -> list[tuple[float, float]]:
    """Return the loss and gradient norm of each of the first *steps* steps."""
    random = Random(1)
    return [model.step(pieces(model, random), learning_rate) for _ in range(steps)]


def test_an_untrained_model_is_about_as_good_as_a_guess() -> None:
    model = built()
    assert model.loss(pieces(model, Random(0))) == pytest.approx(math.log(len(CORPUS.vocabulary)), abs=0.4)


def test_the_loss_falls_on_the_real_text() -> None:
    model = built()
    losses = [loss for loss, _ in trained(model, steps=STEPS)]
    held_out = training_text.windows(CORPUS.validation, count=128, length=model.context + 1, random=Random(2))
    assert losses[0] > 4.0
    assert sum(losses[-5:]) / 5 < 2.9
    assert model.loss(held_out) < 2.9


def test_the_gradient_norm_is_reported() -> None:
    norms = [norm for _, norm in trained(built(), steps=5)]
    assert all(0.05 < norm < 50.0 for norm in norms)


def test_the_same_seed_trains_the_same() -> None:
    first, again, other = (trained(built(seed=seed), steps=2) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_asking_for_the_loss_changes_nothing() -> None:
    model = built()
    batch = pieces(model, Random(0))
    assert model.loss(batch) == model.loss(batch) == pytest.approx(model.step(batch, 1e-3)[0], rel=1e-5)


def test_the_model_is_small_and_reports_how_small() -> None:
    assert 100_000 < built().size < 200_000


@pytest.mark.parametrize("name", ["embedding", "hidden", "hidden_bias", "output", "output_bias"])
def test_the_numpy_gradients_are_finite_differences(name: str) -> None:
    np = pytest.importorskip("numpy")
    parameters = model_numpy.initial(11, 0, context=4)
    parameters = {key: parameter.astype(np.float64) for key, parameter in parameters.items()}
    windows = training_text.windows(bytes(range(11)), count=6, length=5, random=Random(0))
    _, gradients = model_numpy.loss_and_gradients(parameters, windows)
    parameter, gradient = parameters[name].reshape(-1), gradients[name].reshape(-1)
    for index in np.random.default_rng(0).choice(parameter.size, size=min(40, parameter.size), replace=False):
        assert gradient[index] == pytest.approx(slope(parameters, parameter, index, windows), rel=1e-5, abs=1e-9)


def slope(
    parameters: model_numpy.Parameters, parameter: np.ndarray, index: int, windows: list[bytes], *, by: float = 1e-5
) -> float:
    """Return the derivative of the loss by one number of *parameter*, a flat view of one of *parameters*."""
    value, losses = parameter[index], []
    for moved in (value + by, value - by):
        parameter[index] = moved
        losses.append(model_numpy.loss_and_gradients(parameters, windows)[0])
    parameter[index] = value
    return (losses[0] - losses[1]) / (2 * by)


def test_the_first_step_of_adamw_is_as_long_as_the_learning_rate() -> None:
    np = pytest.importorskip("numpy")
    parameters = {"a": np.zeros(2)}
    model_numpy.AdamW(parameters).step({"a": np.array([5.0, -0.01])}, 0.1)
    assert parameters["a"] == pytest.approx([-0.1, 0.1], rel=1e-4)


def test_a_long_gradient_is_cut_to_the_greatest_norm_and_a_short_one_is_not() -> None:
    np = pytest.importorskip("numpy")
    long = {"a": np.array([30.0]), "b": np.array([[40.0]])}
    assert model_numpy.clip(long) == pytest.approx(50.0)
    assert model_numpy.clip(long) == pytest.approx(model_numpy.MAX_NORM)
    short = {"a": np.array([0.3])}
    assert model_numpy.clip(short) == pytest.approx(0.3)
    assert short["a"] == pytest.approx(0.3)
