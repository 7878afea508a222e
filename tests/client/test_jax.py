"""Arrays of JAX: a push does not wait for one, and reads it once it is ready.

`make soak` installs JAX; elsewhere an array with its methods, whose computation ends when the test wants.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from client.router import unsent_rows

if TYPE_CHECKING:
    import trackside


class Array:
    """An array of one element that is computed in the background."""

    is_fully_addressable = True
    dtype, shape = "float32", ()
    device = SimpleNamespace(platform="gpu")

    def __init__(self, value: float, *, ready: bool = False) -> None:
        self._value, self.ready, self.copies, self.is_deleted = value, ready, 0, False

    def is_ready(self) -> bool:
        if self.is_deleted:
            raise RuntimeError("Array has been deleted with shape=float32[].")
        return self.ready

    def copy_to_host_async(self) -> None:
        self.copies += 1

    def item(self) -> float:
        assert self.ready, "this would wait"
        return self._value

    def __float__(self) -> float:
        return self.item()


class Sharded(Array):
    """An array of which other hosts have a part."""

    is_fully_addressable = False

    def addressable_data(self, number: int) -> Array:
        assert number == 0
        return Array(self._value, ready=True)


class Tracer:
    """A stand-in for an array inside of `jit`, which `isinstance` takes for one."""


class Arrays(type):
    """The class of `jax.Array`."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Array | Tracer)


@pytest.fixture(autouse=True)
def jax(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """JAX as it is imported; a test of the real one replaces it."""
    made = ModuleType("jax")
    vars(made)["Array"] = Arrays("Array", (), {})
    if "real" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "jax", made)


def test_an_array_that_is_computed_is_read_at_a_later_push_with_its_step(run: trackside.Run) -> None:
    loss = Array(1.5)
    run.push(step=3, loss=loss, accuracy=0.5)
    run.push(step=4, loss=Array(2.5, ready=True))
    assert loss.copies == 1
    loss.ready = True
    run.push(step=5, accuracy=0.25)
    assert unsent_rows(run)[0] == [
        *((3, {"accuracy": 0.5}), (4, {"loss": 2.5})),
        *((3, {"loss": 1.5}), (5, {"accuracy": 0.25})),
    ]


def test_what_was_deleted_is_lost_alone(run: trackside.Run) -> None:
    donated, last = Array(1.0), Array(2.0)
    run.push(step=0, loss=donated)
    run.push(step=1, loss=last)
    donated.is_deleted = last.ready = True
    run.push(step=2, lr=0.1)
    rows, totals = unsent_rows(run)
    assert [row for row in rows if row[1]] == [(1, {"loss": 2.0}), (2, {"lr": 0.1})]
    assert totals.dropped == 1


def test_what_was_deleted_is_counted_once_while_another_of_its_push_is_computed(run: trackside.Run) -> None:
    donated, slow = Array(1.0), Array(2.0)
    run.push(step=0, loss=donated, norm=slow)
    donated.is_deleted = True
    for step in (1, 2, 3):
        run.push(step=step, lr=0.1)
    slow.ready = True
    run.push(step=4, lr=0.1)
    rows, totals = unsent_rows(run)
    assert (0, {"norm": 2.0}) in rows
    assert totals.dropped == 1


def test_of_an_array_of_several_hosts_the_part_of_this_one_counts(run: trackside.Run) -> None:
    run.push(step=0, loss=Sharded(0.5))
    assert unsent_rows(run)[0] == [(0, {"loss": 0.5})]


def test_inside_a_compiled_function_a_value_is_refused_with_the_way_out(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(2):
        run.push(step=step, loss=Tracer(), lr=0.1)
    assert unsent_rows(run)[1].dropped == 2
    [warning] = [record.getMessage() for record in caplog.records if "loss" in record.getMessage()]
    assert "inside a function that JAX compiles or derives; push what that returns" in warning


@pytest.fixture
def real() -> Any:
    if find_spec("jax") is None:
        pytest.skip("make soak installs JAX")
    return import_module("jax")


def test_inside_what_jax_compiles_derives_or_maps_a_value_is_refused_with_one_line(
    run: trackside.Run, real: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def square(x: Any) -> Any:
        run.push(inside=x)
        return x * x

    assert real.jit(square)(2.0) == real.grad(square)(2.0) == 4.0
    real.vmap(square)(real.numpy.ones(3))
    [warning] = [record.getMessage() for record in caplog.records if "inside" in record.getMessage()]
    assert warning.endswith("push what that returns; it is dropped, and so are further ones"), warning
    assert unsent_rows(run)[1].dropped == 3


def test_a_donated_loss_is_lost_alone_or_read_before(run: trackside.Run, real: Any) -> None:
    further = real.jit(lambda x: x + 1, donate_argnums=0)
    x = real.numpy.ones((512, 512))
    for step in range(4):
        loss = real.jit(lambda x: (x @ x @ x).mean())(x)
        run.push(step=step, loss=loss)
        run.push(step=step, kept=further(loss))
    real.block_until_ready(further(real.numpy.zeros(())))
    real.effects_barrier()
    run.finish()
    rows, totals = unsent_rows(run)
    kept = [values["kept"] for _, values in rows if "kept" in values]
    losses = [values["loss"] for _, values in rows if "loss" in values]
    assert kept == [512.0 * 512.0 + 1] * 4
    assert len(losses) + totals.dropped == 4
    assert set(losses) <= {512.0 * 512.0}


def test_jax_itself_is_not_waited_for(run: trackside.Run, real: Any) -> None:
    jnp = real.numpy

    @real.jit  # type: ignore[untyped-decorator]
    def work(x: Any) -> Any:
        run.push(inside=x.mean())
        for _ in range(60):
            x = jnp.tanh(x @ x * 0.01)
        return x.mean()

    x = jnp.ones((512, 512))
    work(x).block_until_ready()
    half = jnp.asarray([1.5], "bfloat16")
    losses = []
    for step in range(3):
        losses.append(work(x))
        run.push(step=step, loss=losses[-1], half=half)
        assert not losses[-1].is_ready()
    real.block_until_ready(losses)
    run.push(step=3)
    rows, totals = unsent_rows(run)
    assert {step: values["loss"] for step, values in rows if "loss" in values} == dict(enumerate(map(float, losses)))
    assert [values["half"] for _, values in rows if "half" in values] == [1.5] * 3
    assert totals.dropped == 1
