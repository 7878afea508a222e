"""Values that a training may push, and the beginning and end of a run."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import logging
import math
import os
import sys
import threading
import types
import warnings as python_warnings
import weakref
from collections import UserDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.router import Router, pushed, undrained, unsent_rows
from processes import eventually

import trackside
from trackside.environment.config import CONFIG_BYTES, as_json
from trackside.integrations.run_adapter import RunAdapter
from trackside.limits import ROWS_WAITING
from trackside.redact import REDACTED
from trackside.row_queue import MAX_WARNED_KEYS, VALUES_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.process_state import ProcessState

NAN = float("nan")


pytestmark = pytest.mark.usefixtures("quiet")


class Scalar:
    """Something with ``__float__``."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"Scalar({self._value!r})"

    def __float__(self) -> float:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value  # type: ignore[return-value]


class Unreadable(UserDict[str, float]):
    """A mapping that fails when it is read."""

    def __getitem__(self, key: str) -> float:
        raise OSError(key)


class Level(enum.IntEnum):
    """A number with a name."""

    HIGH = 3


def sender_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trackside-sender"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.name for record in caplog.records} <= {"trackside"}
    return [record.getMessage().removeprefix("trackside: ") for record in caplog.records]


ACCEPTED = [
    (3, 3.0),
    (0.5, 0.5),
    (-0.0, -0.0),
    (True, 1.0),
    (NAN, NAN),
    (float("-inf"), float("-inf")),
    (10**300, 1e300),
    (Level.HIGH, 3.0),
    (Decimal("0.25"), 0.25),
    (Fraction(1, 4), 0.25),
    (Scalar(0.75), 0.75),
]
REFUSED = [
    "3",
    b"3",
    bytearray(b"3"),
    None,
    [1.0],
    (),
    Unreadable(loss=1.0),
    1j,
    object(),
    Scalar(ValueError("no")),
    Scalar(RuntimeError("CUDA error")),
    Scalar("text"),
    Fraction(10**400),
]


@pytest.mark.parametrize(("value", "arrives"), ACCEPTED, ids=repr)
def test_push_accepts_whatever_is_a_number(run: trackside.Run, value: object, arrives: float) -> None:
    run.push(step=1, loss=value)
    (row,), totals = unsent_rows(run)
    assert repr(row) == repr((1, {"loss": arrives}))
    assert totals.dropped == 0


def test_push_accepts_scalars_of_numpy_and_tensors_of_one_element(run: trackside.Run) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    tensor = torch.tensor(0.5)
    numbers = [
        *(np.float64(0.5), np.float32(0.5), np.float16(0.5), np.int64(-2), np.uint8(7), np.bool_(True), np.array(3)),
        *(tensor, torch.tensor(0.5, requires_grad=True), torch.tensor([0.5]), torch.tensor(2)),
        *(torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(True)),
    ]
    run.push({f"v{number}": value for number, value in enumerate(numbers)}, step=1)
    tensor.fill_(9.0)
    rows, totals = unsent_rows(run)
    assert list(rows[0][1].values()) == [0.5, 0.5, 0.5, -2.0, 7.0, 1.0, 3.0, 0.5, 0.5, 0.5, 2.0, 0.5, 1.0]
    assert totals.dropped == 0


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_a_value_that_is_not_a_number_is_dropped_and_counted_and_its_neighbours_are_retained(
    run: trackside.Run, value: object
) -> None:
    run.push(step=1, loss=0.5, odd=value, lr=0.1)
    rows, totals = unsent_rows(run)
    assert rows == [(1, {"loss": 0.5, "lr": 0.1})]
    assert (totals.pushes, totals.dropped) == (1, 1)


def test_a_value_that_stands_for_another_one_that_is_gone_is_refused(run: trackside.Run) -> None:
    run.push(step=1, loss=0.5, odd=weakref.proxy(Scalar(1.0)), lr=0.1)
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"loss": 0.5, "lr": 0.1})], 1)


def test_an_array_or_tensor_of_several_elements_is_no_number(run: trackside.Run) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    run.push(step=1, a=np.zeros(2), b=torch.zeros(2), c=np.array(["3"]), d=np.zeros((1, 0)), loss=1.0)
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"loss": 1.0})], 4)


class Eager:
    """A tensor as TensorFlow has it, which only its array can read."""

    dtype, shape = "<dtype: 'float16'>", (1, 1)

    def numpy(self) -> Any:
        return pytest.importorskip("numpy").array([[1.5]], "float16")


def test_one_element_is_a_number_in_any_shape_of_any_library(run: trackside.Run) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    numbers = [np.array([1.5]), np.array([[[1.5]]], "float16"), torch.tensor([[1.5]], requires_grad=True), Eager()]
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("error")
        run.push({f"v{number}": value for number, value in enumerate(numbers)}, step=np.array([7]))
    rows, totals = unsent_rows(run)
    assert rows == [(7, dict.fromkeys(("v0", "v1", "v2", "v3"), 1.5))]
    assert totals.dropped == 0


def test_a_complex_number_is_refused_without_a_warning_of_its_library(run: trackside.Run) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    numbers = [np.complex64(3 + 4j), np.complex128(1j), 3 + 4j, np.array([1j]), torch.tensor(2 + 0j)]
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("error")
        run.push({f"v{number}": value for number, value in enumerate(numbers)}, step=1, loss=1.0)
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"loss": 1.0})], 5)


def test_what_is_dropped_is_warned_about_once_per_key(run: trackside.Run, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(3):
        run.push(step=step, loss="0.5", lr=[0.1])
    assert warnings(caplog) == [
        "loss: a value of type str is not a number; it is dropped, and so are further ones",
        "lr: a value of type list is not a number; it is dropped, and so are further ones",
    ]
    assert unsent_rows(run)[1].dropped == 6


def test_there_is_an_end_of_warnings(run: trackside.Run, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_WARNED_KEYS + 10):
        run.push({f"key{number}": None})
    assert len(warnings(caplog)) == MAX_WARNED_KEYS
    assert unsent_rows(run)[1].dropped == MAX_WARNED_KEYS + 10


@pytest.mark.parametrize("key", [7, None, "\ud800", ("a", 1), frozenset(), Scalar(1.0)], ids=repr)
@pytest.mark.parametrize("value", [1.0, "text"])
def test_a_key_that_is_no_text_costs_only_itself_and_is_reported(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, process: ProcessState, key: Any, value: object
) -> None:
    for step in range(3):
        run.push({key: value, "loss": 0.5}, step=step)
    rows, totals = unsent_rows(run)
    assert rows == [(step, {"loss": 0.5}) for step in range(3)]
    assert totals.dropped == 3
    process.exit()
    assert sum(f"{kind} is" in line for line in warnings(caplog) for kind in ("a key", "a value of type str")) == 1


class Unprintable:
    """A key that cannot even be shown."""

    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


def test_results_are_events_one_for_each_and_odd_ones_become_text(run: trackside.Run) -> None:
    with undrained(run):
        run.summary(best=Decimal("1.5"), note="no warm-up", scores=[1, 2])
        trackside.summary({"eval/bleu": NAN}, best=None)
        events: list[Any] = [message for _, message, _ in run.queue.session.rows]
    assert [json.loads(event.fields) for event in events] == [
        {"best": "1.5"},
        {"note": "no warm-up"},
        {"scores": [1, 2]},
        {"eval/bleu": "nan"},
        {"best": None},
    ]
    assert {event.kind for event in events} == {"summary"}


@pytest.mark.parametrize(
    "values", [3, "loss", [("loss", 0.5)], {"loss"}, object(), Unreadable(loss=1.0)], ids=lambda v: type(v).__name__
)
def test_an_argument_that_is_no_mapping_is_dropped_and_the_named_values_are_retained(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, values: Any
) -> None:
    for step in (1, 2):
        run.push(values, step=step, lr=0.1)
    rows, totals = unsent_rows(run)
    assert rows == [(1, {"lr": 0.1}), (2, {"lr": 0.1})]
    assert totals.dropped == 2
    name = type(values).__name__
    assert warnings(caplog) == [f"cannot read values by key from a {name}; it is dropped, and so are further ones"]


def test_mappings_among_the_values_are_flattened_with_dots_however_they_are_pushed(run: trackside.Run) -> None:
    scores = {"bleu": 31.2, "by": UserDict({"language": {"de": 30.0}}), "name": "wmt"}
    run.push({"eval": scores}, step=1)
    run.push(step=2, eval=scores, loss=0.5)
    run.log({"eval": scores}, step=3)
    trackside.log({"empty": {}, "loss": {0: 0.25}}, step=4)
    rows, totals = unsent_rows(run)
    flat = {"eval.bleu": 31.2, "eval.by.language.de": 30.0}
    assert rows == [(1, flat), (2, {**flat, "loss": 0.5}), (3, flat), (4, {"loss.0": 0.25})]
    assert totals.dropped == 3


def a_cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {"loss": 1.0}
    cycle["again"] = cycle
    return cycle


def a_tree() -> dict[str, Any]:
    """Return 2**40 values in 41 objects."""
    tree: dict[str, Any] = {"loss": 1.0}
    for _ in range(40):
        tree = {"left": tree, "right": tree}
    return tree


@pytest.mark.parametrize(
    ("endless", "reason"),
    [(a_cycle(), "cannot read values by key from a dict"), (a_tree(), "a mapping with more than 10000 values")],
    ids=["contains itself", "too many values"],
)
def test_a_mapping_without_end_costs_only_itself(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, endless: dict[str, Any], reason: str
) -> None:
    run.push(step=1, odd=endless, lr=0.1, eval={"bleu": 31.2})
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"lr": 0.1, "eval.bleu": 31.2})], 1)
    assert warnings(caplog) == [f"odd: {reason}; it is dropped, and so are further ones"]


def test_log_counts_steps_as_wandb_does(run: trackside.Run) -> None:
    run.log({"loss": 1.0})
    run.log({"accuracy": 0.5})
    run.log({"loss": 0.9}, commit=False)
    run.log({"loss": 0.8, "lr": 0.1}, commit=False)
    run.log({"accuracy": 0.6})
    run.log({"loss": 0.7}, 7)
    run.log({"accuracy": 0.7})
    run.log({"loss": 0.6}, step=20, commit=True)
    run.push(lr=0.2)
    run.push(accuracy=0.8)
    run.log({}, commit=True)
    trackside.log({"loss": 0.5})
    rows, totals = unsent_rows(run)
    assert rows == [
        (0, {"loss": 1.0}),
        (1, {"accuracy": 0.5}),
        (2, {"loss": 0.9}),
        (2, {"loss": 0.8, "lr": 0.1}),
        (2, {"accuracy": 0.6}),
        (7, {"loss": 0.7}),
        (7, {"accuracy": 0.7}),
        (20, {"loss": 0.6}),
        (21, {"lr": 0.2}),
        (21, {"accuracy": 0.8}),
        (22, {"loss": 0.5}),
    ]
    assert totals.dropped == 0


@pytest.mark.parametrize("values", [3, None, "loss", [("loss", 0.5)], object(), Unreadable(loss=1.0)], ids=repr)
@pytest.mark.parametrize("step", [None, "three", 1.5])
def test_what_is_logged_raises_nothing(run: trackside.Run, values: Any, step: Any) -> None:
    run.log(values, step, step)
    run.log({"loss": 1.0}, commit="yes")  # type: ignore[arg-type]
    rows, totals = unsent_rows(run)
    assert [row for _, row in rows] == [{"loss": 1.0}]
    assert totals.dropped == 1


def test_a_key_that_cannot_be_shown_raises_nothing(run: trackside.Run) -> None:
    run.push({Unprintable(): "text"})  # type: ignore[dict-item]
    assert unsent_rows(run)[1].dropped == 1


def test_texts_that_cannot_be_shown_raise_nothing(nowhere: str) -> None:
    class BadError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Bad:
        def __repr__(self) -> str:
            raise BadError

    bad = Bad()
    run = trackside.init(endpoint=nowhere, config={"bad": bad}, profile={"epochs": bad})
    run.log_text(bad, "text")  # type: ignore[arg-type]
    run.log_text("key", bad)  # type: ignore[arg-type]
    run.log_image("key", bad)
    run.event(bad, at=bad)  # type: ignore[arg-type]
    run.alert(bad, bad, severity=bad)  # type: ignore[arg-type]
    run.alert("title", severity=[])  # type: ignore[arg-type]
    run.push(loss=0.5)
    assert unsent_rows(run)[0][-1][1] == {"loss": 0.5}


def test_a_mapping_and_named_values_are_one_push_and_the_named_ones_win(run: trackside.Run) -> None:
    values = {"eval/bleu": 31.2, "loss": 9.0}
    run.push(values, step=4, loss=0.5)
    values["eval/bleu"] = 0.0
    run.push(UserDict({"a b": 1}), step=5)
    run.push({}, step=6)
    run.push({"step": 7.0, "values": 8.0, "self": 9.0}, step=7)
    run.push(values=1, self=2, step=8)
    rows, totals = unsent_rows(run)
    assert rows == [
        (4, {"eval/bleu": 31.2, "loss": 0.5}),
        (5, {"a b": 1.0}),
        (7, {"step": 7.0, "values": 8.0, "self": 9.0}),
        (8, {"values": 1.0, "self": 2.0}),
    ]
    assert (totals.pushes, totals.steps, totals.dropped) == (5, 5, 0)


@pytest.mark.parametrize(
    ("step", "arrives"), [(7, 7), (7.0, 7), (True, 1), (Level.HIGH, 3), (Decimal(7), 7), (-2, -2), (Scalar(7.0), 7)]
)
def test_a_step_is_anything_that_is_a_whole_number(run: trackside.Run, step: Any, arrives: int) -> None:
    run.push(step=step, loss=0.5)
    ((arrived, _),), totals = unsent_rows(run)
    assert arrived == hello_of(run).step == arrives
    assert totals.dropped == 0


def test_a_step_may_be_of_numpy_or_a_tensor(run: trackside.Run) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    steps = [
        np.int64(1),
        np.int32(2),
        np.float32(3),
        np.array(4),
        torch.tensor(5),
        torch.tensor(6.0),
        torch.tensor([7]),
    ]
    for step in steps:
        run.push(step=step, loss=0.5)
    rows, totals = unsent_rows(run)
    assert [step for step, _ in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert totals.dropped == 0


@pytest.mark.parametrize("step", ["7", b"7", 2.5, NAN, float("inf"), [], 1j, object(), Scalar(ValueError("no"))])
def test_a_step_that_is_none_is_warned_about_once_and_the_values_join_the_current_step(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    run.push(step=5, loss=0.5)
    run.push({"step": "also a key"}, step=step, lr=0.1)
    run.push(step=step, loss=0.25)
    rows, totals = unsent_rows(run)
    assert rows == [(5, {"loss": 0.5}), (5, {"lr": 0.1}), (6, {"loss": 0.25})]
    assert totals.dropped == 1
    assert warnings(caplog) == [
        f"step: a {type(step).__name__} is not a whole number; it is dropped, and so are further ones",
        "step: a value of type str is not a number; it is dropped, and so are further ones",
    ]


@pytest.mark.parametrize("step", [2**63, -(10**30), 1e300])
def test_a_step_beyond_int64_costs_its_push_and_nothing_more(run: trackside.Run, step: Any) -> None:
    for one in (1, step, 2):
        run.push(step=one, loss=0.5)
    rows, totals = unsent_rows(run)
    assert [step for step, _ in rows] == [1, 2]
    assert (totals.pushes, totals.dropped) == (3, 1)


class Shouting(logging.Handler):
    """A handler that raises instead of handling."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def test_a_logging_handler_that_raises_does_not_reach_the_training(nowhere: str) -> None:
    handler = Shouting()
    logging.getLogger("trackside").addHandler(handler)
    try:
        run = trackside.init(endpoint=nowhere, config={"self": Unprintable()})
        run.push(step=1, loss="text", lr=0.1)
        assert unsent_rows(run)[0] == [(1, {"lr": 0.1})]
    finally:
        logging.getLogger("trackside").removeHandler(handler)


OVERRUN = "pushes arrive faster than they can be sent, and the queue is full; it is dropped, and so are further ones"


def calls_of(push: Callable[..., None], **values: Any) -> list[str]:
    """Return the functions that one push calls, by name, Python's and C's."""
    called: list[str] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)
        elif event == "c_call":
            called.append(argument.__name__)

    push(step=0, **values)
    sys.setprofile(profile)
    try:
        push(step=1, **values)
    finally:
        sys.setprofile(None)
    assert called.pop() == "setprofile"
    return called


def test_a_push_of_numbers_is_one_function_since_between_steps_each_costs_a_microsecond(nowhere: str) -> None:
    run = trackside.init("train", endpoint=nowhere)
    usual = ["push", "len", "len", "items", "monotonic_ns", "append"]
    assert calls_of(run.push, loss=0.5, samples=32) == usual
    assert calls_of(trackside.push, loss=0.5, samples=32) == usual
    torch = pytest.importorskip("torch")
    assert calls_of(run.push, loss=torch.tensor(0.5)) == [
        *("push", "len", "len", "items", "read_number", "dim", "tolist", "monotonic_ns", "append")
    ]


def test_when_pushes_come_faster_than_they_can_be_sent_the_oldest_are_dropped_and_counted(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    with undrained(run):
        for step in range(ROWS_WAITING + 5):
            run.push(step=step, loss=0.5, lr=0.1)
        assert warnings(caplog) == [OVERRUN]
    rows, totals = unsent_rows(run)
    assert [step for step, _ in rows] == list(range(5, ROWS_WAITING + 5))
    assert (totals.dropped, totals.pushes) == (2 * 5, ROWS_WAITING + 5)


@pytest.mark.parametrize("width", [9, 16, 1000])
def test_pushes_that_wait_are_bounded_by_their_values_too(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, width: int
) -> None:
    wide = {f"layer/{number}": 0.5 for number in range(width)}
    pushes = min(ROWS_WAITING, VALUES_WAITING // width + 700)
    with undrained(run):
        for step in range(pushes):
            run.push(wide, step=step)
        # With less than some ten values a row, together about 20 MB, with what the objects of each value and row take.
        waiting = len(run.queue.session.rows)
        assert VALUES_WAITING // width - 1 <= waiting <= VALUES_WAITING // width
    rows, totals = unsent_rows(run)
    assert [step for step, _ in rows] == list(range(pushes - waiting, pushes))
    assert (totals.dropped, totals.pushes) == (width * (pushes - waiting), pushes)
    assert warnings(caplog) == [OVERRUN]


def test_room_that_wide_pushes_took_is_free_again_once_they_are_sent(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    wide = {f"layer/{number}": 0.5 for number in range(VALUES_WAITING // 4)}
    for step in range(6):
        run.push(wide, step=step)
        eventually(lambda: not run.queue.session.rows)
    assert unsent_rows(run)[1].dropped == 0
    assert not caplog.records


def test_a_push_that_alone_is_wider_than_what_may_wait_is_sent_all_the_same(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.push({f"layer/{number}": 0.5 for number in range(VALUES_WAITING + 1)}, step=1)
    rows, totals = unsent_rows(run)
    assert sum(len(values) for _, values in rows) == VALUES_WAITING + 1
    assert totals.dropped == 0
    assert not caplog.records


class Defiant(str):
    """A key that is text but cannot be encoded."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise OSError


def test_a_key_that_raises_when_it_is_written_costs_its_push_and_nothing_more(run: trackside.Run) -> None:
    run.push(step=1, loss=0.5)
    run.push({Defiant("odd"): 1.0}, step=2)
    run.push(step=3, loss=0.25)
    rows, totals = unsent_rows(run)
    assert rows == [(1, {"loss": 0.5}), (3, {"loss": 0.25})]
    assert totals.dropped == 1


def test_wide_pushes_that_outrun_the_sender_for_long_neither_stop_it_nor_lose_count(run: trackside.Run) -> None:
    wide = {f"layer/{number}": 0.5 for number in range(VALUES_WAITING // 2)}
    for step in range(40):
        run.push(wide, step=step)
    rows, totals = unsent_rows(run)
    kept_values = sum(len(values) for _, values in rows)
    assert totals.pushes == 40
    assert totals.dropped == 40 * len(wide) - kept_values


def in_eight_threads(work: Callable[[int], object]) -> None:
    """Do some work in eight threads at once, each with its number."""
    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=lambda number=one: (barrier.wait(), work(number))) for one in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_pushes_of_many_threads_all_arrive(run: trackside.Run) -> None:
    def work(number: int) -> None:
        for step in range(500):
            run.push({f"thread/{number}": step, "text": "no number"}, step=step)

    in_eight_threads(work)
    rows, totals = unsent_rows(run)
    for number in range(8):
        own = [values[f"thread/{number}"] for _, values in rows if f"thread/{number}" in values]
        assert own == list(range(500))
    assert (totals.pushes, totals.dropped) == (4000, 4000)


def test_the_first_push_opens_a_run_even_when_many_threads_make_it(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState
) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    in_eight_threads(lambda _: trackside.push(loss=0.5))
    (queue,) = process.queues
    assert len(sender_threads()) == 1
    run = process.default
    assert run is not None
    assert run.queue is queue
    assert unsent_rows(run)[1].pushes == 8


def test_the_module_acts_on_the_default_run_and_a_push_after_its_end_opens_another(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState
) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    trackside.finish()
    trackside.push({"a/b": 1.0}, step=3, loss=0.5)
    first = process.default
    assert first is not None
    trackside.finish("stopped")
    assert unsent_rows(first)[0] == [(3, {"a/b": 1.0, "loss": 0.5})]
    trackside.push(loss=0.25)
    second = process.default
    assert second is not None
    assert (second.id, process.queues) != (first.id, {first.queue, second.queue})
    assert unsent_rows(second)[0] == [(0, {"loss": 0.25})]


def test_init_twice_is_two_runs_and_the_second_is_the_default(nowhere: str) -> None:
    first = trackside.init("one", endpoint=nowhere)
    second = trackside.init("two", endpoint=nowhere)
    trackside.push(loss=2.0)
    first.push(loss=1.0)
    assert len(sender_threads()) == 1
    assert unsent_rows(first)[0] == [(0, {"loss": 1.0})]
    assert unsent_rows(second)[0] == [(0, {"loss": 2.0})]
    assert (first.name, second.name) == ("one", "two")
    assert first.id != second.id


def test_finish_twice_ends_once_and_later_pushes_do_nothing(run: trackside.Run) -> None:
    run.push(loss=1.0)
    run.finish("stopped")
    messages = len(run.queue.session.pending)
    run.finish("failed")
    run.push(loss=2.0)
    run.push("nonsense")  # type: ignore[arg-type]
    assert len(run.queue.session.pending) == messages
    assert not run.queue.session.rows


@pytest.mark.parametrize("status", ["done", "", "lost", "running", None, 0, []])
def test_an_unknown_status_counts_as_stopped_with_a_warning(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, status: Any
) -> None:
    run.finish(status)
    assert not run.is_open
    assert "is none of finished, stopped, failed; stopped is used" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (None, "finished", ""),
        (ValueError("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"), "failed", f"ValueError: HF_TOKEN={REDACTED}"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (SystemExit(3), "failed", "exit status 3"),
    ],
)
def test_a_with_block_ends_its_run_by_how_it_is_left(
    router: Router, error: BaseException | None, status: str, cause: str
) -> None:
    left: list[BaseException | None] = []

    def train() -> None:
        try:
            with trackside.init(endpoint=router.endpoint) as run:
                run.push(loss=0.5)
                if error is not None:
                    raise error  # noqa: TRY301  this is the block that it leaves
            left.append(None)
        except BaseException as raised:  # noqa: BLE001  it is looked at below
            left.append(raised)

    thread = threading.Thread(target=train)
    thread.start()
    (reported,) = router.serve().values()
    thread.join()
    assert left == [error]
    bye = reported[-1].body
    assert (bye.status, bye.cause, bye.provisional) == (status, cause, False)
    assert pushed(reported) == [(0, {"loss": 0.5})]


@pytest.mark.parametrize("off", [{"enabled": False}, {"environ": "1"}])
def test_a_run_that_is_switched_off_does_nothing_at_all(
    nowhere: str,
    monkeypatch: pytest.MonkeyPatch,
    process: ProcessState,
    caplog: pytest.LogCaptureFixture,
    off: dict[str, Any],
) -> None:
    if "environ" in off:
        monkeypatch.setenv("TRACKSIDE_DISABLED", off.pop("environ"))
    files = len(list(Path("/proc/self/fd").iterdir()))
    touched: list[int] = []

    class Costly:
        def __float__(self) -> float:
            touched.append(1)
            return 0.5

    with trackside.init("off", endpoint=nowhere, **off) as run:
        run.push(step=1, loss=Costly(), text="text")
        trackside.push(loss=Costly())
    run.finish()
    assert (run.name, run.rank) == ("off", 0)
    assert not touched
    assert not caplog.records
    assert not sender_threads()
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert not process.queues
    assert not run.queue.session.rows


@pytest.mark.parametrize("value", ["", "0"])
def test_trackside_disabled_by_nothing_or_zero_is_not(
    monkeypatch: pytest.MonkeyPatch, nowhere: str, value: str
) -> None:
    monkeypatch.setenv("TRACKSIDE_DISABLED", value)
    run = trackside.init(endpoint=nowhere)
    run.push(loss=0.5)
    assert unsent_rows(run)[0] == [(0, {"loss": 0.5})]


def test_after_the_process_has_sent_its_ends_nothing_begins_anew(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState
) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    trackside.push(loss=0.5)
    process.exit()
    assert not sender_threads()
    trackside.push(loss=0.25)
    trackside.finish()
    trackside.push(loss=0.25)
    assert not sender_threads()


def test_where_no_thread_can_be_had_training_continues_without_a_run(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    run = trackside.init(endpoint=nowhere)
    run.push(loss=0.5)
    trackside.push(loss=0.5)
    run.finish()
    assert warnings(caplog) == ["nothing can be sent, training goes on: can't start new thread"]


def hello_of(run: trackside.Run) -> Any:
    """Return the body of the run's hello."""
    from trackside.transport.sender import now
    from trackside.wire import decode_body

    return decode_body("hello", run.queue.session.hello(now())[2])


def test_a_run_sends_its_name_id_tags_configuration_and_length(nowhere: str) -> None:
    run = trackside.init(
        "name", id="id-7", config={"lr": 0.1}, tags=["a", "b"], total_steps=100, endpoint=nowhere, enabled=True
    )
    hello = hello_of(run)
    assert (run.name, run.id, run.rank) == ("name", "id-7", 0)
    assert (hello.identity.name, hello.identity.run) == ("name", "id-7")
    assert (hello.config, hello.tags, hello.total_steps) == ('{"lr": 0.1}', ("a", "b"), 100)


def test_name_id_and_tags_come_from_the_environment_too(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKSIDE_RUN_NAME", "from outside")
    monkeypatch.setenv("TRACKSIDE_RUN_ID", "id-8")
    monkeypatch.setenv("TRACKSIDE_TAGS", "a, b,,c ")
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    run = trackside.init()
    assert (run.name, run.id, hello_of(run).tags) == ("from outside", "id-8", ("a", "b", "c"))
    own = trackside.init("own", id="id-9", tags=["d"])
    assert (own.name, own.id, hello_of(own).tags) == ("own", "id-9", ("d",))
    assert hello_of(trackside.init("important", page=True)).tags == ("a", "b", "c", "page")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_ranks_that_are_silent_but_for_rank_0_send_nothing_and_have_their_own_identity(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState, how: str
) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    monkeypatch.setenv("WORLD_SIZE", "2")
    if how == "environment":
        monkeypatch.setenv("TRACKSIDE_RANKS", " Zero")
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        run = trackside.init(ranks="zero") if how == "argument" else trackside.init()
        run.push(step=1, loss=0.5)
        assert list(run.data([1])) == [1]
        run.event("checkpoint")
        hello = hello_of(run)
        assert (run.rank, hello.identity.world) == (rank, 2)
        assert (run.queue in process.queues, run.is_open) == (rank == 0, rank == 0)
        assert rank == 0 or not run.queue.session.rows
        assert unsent_rows(run)[0] == [(1, {"loss": 0.5})] * (rank == 0)
    monkeypatch.setenv("RANK", "1")
    assert trackside.init(ranks="all").queue in process.queues


def test_ranks_are_all_or_zero(nowhere: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="ranks is 'one', which is none of all, zero"):
        trackside.init(ranks="one")  # type: ignore[arg-type]
    monkeypatch.setenv("TRACKSIDE_RANKS", "0,1")
    monkeypatch.setenv("RANK", "1")
    run = trackside.init(endpoint=nowhere)
    run.push(loss=1.0)
    assert [values for _, values in unsent_rows(run)[0]] == [{"loss": 1.0}]
    (record,) = caplog.records
    assert "$TRACKSIDE_RANKS is '0,1', which is none of all, zero; all ranks push" in record.getMessage()


def test_names_that_utf8_cannot_write_are_made_such(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/tmp/caf\udce9.py"])
    monkeypatch.setenv("TRACKSIDE_TAGS", os.fsdecode(b"t\xff"))
    trackside.init(endpoint=router.endpoint, config={"path": "\ud800"})
    hello = router.welcome().body
    assert (hello.identity.name, hello.tags) == ("caf?", ("t?",))
    assert json.loads(hello.config) == {"path": "\ud800"}


@pytest.mark.parametrize(("given", "steps"), [(100, 100), (1e3, 1000), (0, 0), (None, None)])
def test_total_steps_is_a_whole_number(nowhere: str, given: Any, steps: int | None) -> None:
    total = hello_of(trackside.init(total_steps=given, endpoint=nowhere)).total_steps
    assert (total, type(total)) == (steps, type(steps))


@pytest.mark.parametrize(
    ("given", "error"), [(2.5, TypeError), ("9", TypeError), (-1, ValueError), (2**63, ValueError)]
)
def test_total_steps_that_are_none_are_refused(nowhere: str, given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        trackside.init(total_steps=given, endpoint=nowhere)


def test_a_configuration_is_written_as_json_and_what_json_has_not_as_its_text(caplog: pytest.LogCaptureFixture) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    config = UserDict(
        path=Path("/data"),
        loss=NAN,
        limit=math.inf,
        layers=(1, 2),
        names={"a"},
        large=10**40,
        optimizer={"lr": 0.1, 7: None, ("a", 1): Level},
        raw=b"\xff",
        stage=Level.HIGH,
        fast=True,
        generator=range(3),
        numpy=(np.float64(0.1), np.int64(3), np.float64("nan")),
        array=np.arange(2),
        dtype=torch.float32,
    )
    assert json.loads(as_json(config)) == {
        "path": "/data",
        "loss": "nan",
        "limit": "inf",
        "layers": [1, 2],
        "names": ["a"],
        "large": 10**40,
        "optimizer": {"lr": 0.1, "7": None, "('a', 1)": str(Level)},
        "raw": "b'\\xff'",
        "stage": 3,
        "fast": True,
        "generator": [0, 1, 2],
        "numpy": [0.1, 3, "nan"],
        "array": "[0 1]",
        "dtype": "torch.float32",
    }
    assert not caplog.records


@dataclasses.dataclass
class Optimizer:
    """A part of a configuration."""

    lr: float = 0.1


@dataclasses.dataclass
class Slotted:
    """A configuration without a dictionary of its own."""

    __slots__ = ("optimizer",)
    optimizer: Optimizer


class Keyed:
    """A configuration with keys that is no mapping, as of OmegaConf."""

    def keys(self) -> list[str]:
        return ["optimizer"]

    def __getitem__(self, key: str) -> object:
        return Optimizer()


@pytest.mark.parametrize(
    "config",
    [
        argparse.Namespace(optimizer=argparse.Namespace(lr=0.1)),
        types.SimpleNamespace(optimizer=types.SimpleNamespace(lr=0.1), _private=1),
        Slotted(Optimizer()),
        Keyed(),
    ],
    ids=["Namespace", "SimpleNamespace", "dataclass", "keys"],
)
def test_a_configuration_is_anything_with_fields(nowhere: str, config: Any) -> None:
    for run in (
        trackside.init(config=config, endpoint=nowhere),
        RunAdapter("of a framework", {"config": config}).open(),
    ):
        assert json.loads(hello_of(run).config) == {"optimizer": {"lr": 0.1}}
        run.finish()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        *((config, "cannot be written") for config in (a_cycle(), {"a": Unprintable()})),
        ({"a": "x" * CONFIG_BYTES}, ""),
        *(
            (config, "has no fields; pass a dict, a dataclass or a Namespace")
            for config in (3, ["lr"], "lr=0.1", object(), Optimizer)
        ),
    ],
)
def test_a_configuration_that_cannot_be_stored_is_left_out_with_a_warning(
    nowhere: str, caplog: pytest.LogCaptureFixture, config: Any, reason: str
) -> None:
    run = trackside.init(config=config, endpoint=nowhere)
    assert hello_of(run).config == ""
    (warning,) = warnings(caplog)
    assert reason in warning
    assert warning.endswith("it is left out")
    RunAdapter(None, {"config": config})


@pytest.fixture
def signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    """A function that runs a callable in a signal handler, again and again, until the test ends."""
    import signal

    before = signal.getsignal(signal.SIGALRM)

    def call(handle: Callable[[], None]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: handle())
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)

    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_push_in_the_midst_of_a_push(
    run: trackside.Run, signals: Callable[[Callable[[], None]], None]
) -> None:
    handled: list[int] = []

    def handle() -> None:
        handled.append(1)
        run.push(text="from the handler")

    signals(handle)
    pushes = 0
    while len(handled) < 200:
        run.push(text="no number")
        pushes += 1
    signals(lambda: None)
    totals = unsent_rows(run)[1]
    assert totals.dropped == pushes + len(handled)
