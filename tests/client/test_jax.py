"""Arrays of JAX: a push does not wait for one, and reads it once it is ready.

`make soak` installs JAX; elsewhere an array with its methods, whose computation ends when the test wants.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from threading import Thread, Timer
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from client.messages import CLOCK, a_session, push, pushed
from client.router import undrained, unsent_rows

import trackside
from trackside.process_state import ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable


class Array:
    """An array of one element that is computed in the background."""

    is_fully_addressable = True
    dtype: Any = "float32"
    shape: tuple[int, ...] = ()

    def __init__(self, value: float, *, ready: bool = False) -> None:
        self._value, self.ready, self.deleted = value, ready, False

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        if self.deleted:
            raise RuntimeError("Array has been deleted with shape=float32[].")
        return self.ready

    def copy_to_host_async(self) -> None:
        raise AssertionError("a copy costs more than a look")

    def item(self) -> float:
        assert self.ready, "this would wait"
        return self._value

    def __float__(self) -> float:
        return self.item()


class Sharded(Array):
    """An array of which other hosts have a part."""

    is_fully_addressable = False

    def is_ready(self) -> bool:
        return True

    def item(self) -> float:
        raise RuntimeError("Fetching value for `jax.Array` that spans non-addressable (non process local) devices")

    def addressable_data(self, number: int) -> Array:
        assert number == 0
        return Array(self._value, ready=True)


class Tracer:
    """A stand-in for an array inside of `jit`, which `isinstance` takes for one."""


class Arrays(type):
    """The class of `jax.Array`."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Array | Tracer)


listeners: list[Callable[..., None]] = []


@pytest.fixture(autouse=True)
def jax(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """JAX as it is imported; a test of the real one replaces it."""
    made = ModuleType("jax")
    vars(made)["Array"] = Arrays("Array", (), {})
    vars(made)["monitoring"] = SimpleNamespace(register_event_duration_secs_listener=listeners.append)
    if "real" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "jax", made)


def test_a_push_asks_once_whether_an_array_is_ready_and_the_sender_reads_it_with_its_step(run: trackside.Run) -> None:
    losses = [Array(1.5), Array(2.5), Array(3.5)]
    with undrained(run):
        for step, loss in enumerate(losses):
            run.push(step=step, loss=loss, lr=0.5)
        run.push(step=3, loss=Array(4.5, ready=True), lr=0.5)
        for loss in losses:
            loss.ready = True
    assert unsent_rows(run)[0] == [(step, {"loss": step + 1.5, "lr": 0.5}) for step in range(4)]


def test_later_arrays_wait_behind_one_that_is_not_computed_and_numbers_do_not() -> None:
    first, second, session = Array(1.0), Array(2.0), a_session()
    pushes: list[dict[str, Any]] = [{"loss": first, "lr": 0.5}, {"loss": second}, {"lr": 0.25}]
    for step, values in enumerate(pushes):
        push(session, values, step)
    second.ready = True
    session.drain(CLOCK)
    assert session.newest_step() == 2
    first.ready = True
    session.drain(CLOCK)
    found = [(step, values) for step, _, values in pushed(session)]
    assert found == [(0, {"lr": 0.5}), (2, {"lr": 0.25}), (0, {"loss": 1.0}), (1, {"loss": 2.0})]


def test_the_end_waits_a_while_for_what_is_computed(run: trackside.Run) -> None:
    slow, hung = Array(1.0), Array(2.0)
    run.push(step=0, loss=slow)
    run.push(step=1, loss=hung)
    Timer(0.1, vars(slow).update, [{"ready": True}]).start()
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(0, {"loss": 1.0})], 1)


def test_one_that_was_donated_is_lost_alone_with_the_way_out(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    donated, kept = Array(1.0), Array(2.0)
    with undrained(run):
        for step in range(3):
            run.push(step=step, loss=donated, norm=kept)
        donated.deleted = kept.ready = True
        run.push(step=3, loss=donated)
    rows, totals = unsent_rows(run)
    assert ([row for row in rows if row[1]], totals.dropped) == ([(step, {"norm": 2.0}) for step in range(3)], 4)
    lines = {record.getMessage() for record in caplog.records if "loss" in record.getMessage()}
    assert [line for line in lines if "donated" not in line or "push array.copy()" not in line] == []
    assert lines


def test_an_array_of_many_numbers_is_refused_and_not_kept(run: trackside.Run) -> None:
    class Many(Array):
        shape = (2, 3)

    class Complex(Array):
        dtype, shape = "complex64", (1,)

    for ready in (False, True):
        run.push(step=0, gradient=Many(1.0, ready=ready), phase=Complex(1.0, ready=ready))
    assert unsent_rows(run)[1].dropped == 4


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


def following(run: trackside.Run) -> ProcessState:
    state = ProcessState()
    state.queues.add(run.queue)
    state.follow_compilations()
    return state


def test_a_compilation_is_a_phase_of_the_runs_of_its_thread(run: trackside.Run) -> None:
    listeners.clear()
    following(run).follow_compilations()
    [compiled] = listeners
    other = Thread(target=compiled, args=("/jax/core/compile/backend_compile_duration", 1.0))
    other.start()
    other.join()
    compiled("/jax/core/compile/jaxpr_trace_duration", 1.0, fun_name="step")
    compiled("/jax/core/compile/backend_compile_duration", 1e-6, fun_name="step")
    phases = unsent_rows(run)[1].phases
    assert 0 < phases["compile"] < 1


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


def test_what_jax_compiles_after_the_first_push_is_a_phase(run: trackside.Run, real: Any) -> None:
    following(run)
    run.push(loss=real.jit(lambda x: (x * 3).sum())(real.numpy.ones(7)))
    assert unsent_rows(run)[1].phases["compile"] > 0


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
