"""Values on a device: that they arrive late, in order and at their own step, and that nothing waits for them."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import processes
import pytest
import torch
from client.router import Router, pushed, undrained, unsent_rows
from client.stream import OnDevice, Stream, on_device
from processes import DEADLINE

import trackside
from trackside import device_scalars as device_module
from trackside import numbers, row_queue
from trackside.device_scalars import SLOTS, DeviceScalars
from trackside.limits import ROWS_WAITING
from trackside.numbers import is_on_device, local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CAPTURED = "it is pushed while a CUDA graph is captured, where nothing can be read"
COMPILED = "it is pushed inside a compiled function, where nothing can be read"


class Arrivals(list[tuple[int, Any, dict[str, float]]]):
    """The values that arrive, the number of values lost, and the GPUs of the values."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self.gpus: list[str] = []

    def accept(self, pushed_at: int, tag: Any, values: dict[str, float]) -> None:
        self.append((pushed_at, tag, values))

    def lose(self, values: int) -> None:
        self.lost += values


@pytest.fixture
def stream() -> Stream:
    return Stream()


class Device:
    """Values on a device, its stream, and those that have arrived."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.arrivals = Arrivals()
        self.scalars = DeviceScalars(self.arrivals.accept, self.arrivals.lose, self.arrivals.gpus.append, stream)

    def arrive(self) -> None:
        """Let all arrive that is under way."""
        self.stream.advance()
        self.scalars.poll()


@pytest.fixture
def device(stream: Stream) -> Device:
    return Device(stream)


@pytest.fixture
def run(nowhere: str, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> trackside.Run:
    """A run whose device is *stream*."""
    monkeypatch.setattr(device_module, "Cuda", lambda: stream)
    return trackside.init(endpoint=nowhere)


def in_thread(work: Callable[[], object]) -> int:
    """Do something in a thread that is gone then; its ident."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert thread.ident is not None
    return thread.ident


# What is taken for a value on a device


def test_a_cuda_tensor_of_one_number_is_on_a_device_and_nothing_else_is() -> None:
    assert is_on_device(on_device(0.5))
    assert is_on_device(on_device([0.5]))
    assert not is_on_device(on_device([0.5, 0.5]))
    assert not is_on_device(on_device([]))
    assert not is_on_device(on_device(1j))
    for value in (torch.tensor(0.5), torch.tensor(0.5, device="meta"), 0.5, None, "cuda", torch):
        assert not is_on_device(value)


def test_without_torch_nothing_is_on_a_device_and_torch_is_not_imported() -> None:
    code = """
        import sys
        from trackside.numbers import is_on_device
        class Cupy:
            is_cuda = True
        print(is_on_device(Cupy()), is_on_device(0.5), "torch" in sys.modules)
        sys.modules["torch"] = type(sys)("torch")  # half imported, as another thread may see it
        print(is_on_device(Cupy()))
    """
    printed = processes.run([sys.executable, "-c", textwrap.dedent(code)], check=True).stdout
    assert printed.split() == ["False", "False", "False", "False"]


# On their way


def test_values_are_handed_over_when_they_have_arrived_oldest_first(device: Device) -> None:
    for step in range(3):
        assert (
            device.scalars.defer(step * 10, f"tag {step}", {"loss": on_device(step + 0.5), "norm": on_device(2.0)})
            == {}
        )
    device.scalars.poll()
    assert device.arrivals == []
    device.stream.advance(1)
    device.scalars.poll()
    assert device.arrivals == [(0, "tag 0", {"loss": 0.5, "norm": 2.0})]
    device.arrive()
    device.scalars.poll()
    assert device.arrivals[1:] == [
        (10, "tag 1", {"loss": 1.5, "norm": 2.0}),
        (20, "tag 2", {"loss": 2.5, "norm": 2.0}),
    ]


def test_the_gpu_that_values_come_from_is_sent_once(device: Device) -> None:
    for step in range(3):
        device.scalars.defer(step, None, {"loss": on_device(0.5)})
    assert device.arrivals.gpus == ["GPU-aa"]


@pytest.mark.parametrize("uuids", [{}, None], ids=["too old to tell", "failed"])
def test_a_device_without_a_readable_name_gives_its_values_all_the_same(
    device: Device, uuids: dict[str, str] | None
) -> None:
    device.stream.uuids = uuids
    assert device.scalars.defer(0, None, {"loss": on_device(0.5)}) == {}
    device.arrive()
    assert [values for _, _, values in device.arrivals] == [{"loss": 0.5}]
    assert device.arrivals.gpus == []


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float64, 0.1),
        (torch.float32, 1.5e38),
        (torch.bfloat16, -3.0e38),
        (torch.float16, 65504.0),
        (torch.int64, 2**53 - 1),
        (torch.int32, -(2**31)),
        (torch.int16, -3),
        (torch.uint8, 255),
        (torch.bool, True),
        (torch.float8_e4m3fn, 448.0),
        (torch.float32, math.inf),
        (torch.bfloat16, math.nan),
    ],
    ids=str,
)
def test_every_kind_of_number_arrives_as_float_would_read_it(device: Device, dtype: torch.dtype, value: float) -> None:
    tensor = torch.tensor(value).to(dtype).as_subclass(OnDevice)
    device.scalars.defer(
        0, None, {"before": on_device(7.0), "value": tensor, "after": on_device(-7, dtype=torch.int64)}
    )
    device.arrive()
    assert repr(device.arrivals[0][2]) == repr({"before": 7.0, "value": float(tensor), "after": -7.0})


def test_tensors_with_a_gradient_or_dimensions_or_of_inference_arrive_in_any_mode(device: Device) -> None:
    weight = on_device(3.0, requires_grad=True)
    with torch.inference_mode():
        device.scalars.defer(0, None, {"first": on_device(1.0)})
        of_inference = on_device(2.0)
    device.scalars.defer(1, None, {"inference": of_inference, "loss": weight * 2, "shaped": on_device([[4.0]])})
    with torch.no_grad():
        device.scalars.defer(2, None, {"loss": weight})
    with torch.inference_mode():
        device.scalars.defer(3, None, {"inference": of_inference})
        device.arrive()
    assert [values for _, _, values in device.arrivals] == [
        {"first": 1.0},
        {"inference": 2.0, "loss": 6.0, "shaped": 4.0},
        {"loss": 3.0},
        {"inference": 2.0},
    ]


def test_slots_and_events_are_used_again_and_memory_is_allocated_once(device: Device) -> None:
    for step in range(3 * SLOTS):
        device.scalars.defer(step, None, {"loss": on_device(float(step)), "step": on_device(step)})
        if step >= 2:
            device.stream.advance(1)
            device.scalars.poll()
    assert [values["step"] for _, _, values in device.arrivals] == list(range(3 * SLOTS - 2))
    assert all(values == {"loss": at, "step": at} for at, _, values in device.arrivals)
    assert device.stream.memories == 1
    assert len(device.stream.events) == 3


def test_when_the_ring_is_full_new_values_are_refused_and_those_under_way_arrive(device: Device) -> None:
    for step in range(SLOTS // 2 - 1):
        assert device.scalars.defer(step, None, {"a": on_device(step), "b": on_device(-step)}) == {}
    last = {key: on_device(float(number)) for number, key in enumerate("abc")}
    full = f"{SLOTS} values are on their way from the device already"
    assert device.scalars.defer(-1, None, last) == {"c": full}
    assert device.scalars.defer(-2, None, last) == dict.fromkeys("abc", full)
    device.stream.advance(1)
    device.scalars.poll()
    assert device.scalars.defer(-3, None, last) == {"c": full}
    device.arrive()
    assert [at for at, _, _ in device.arrivals] == [*range(SLOTS // 2 - 1), -1, -3]
    assert all(values == {"a": at, "b": -at} for at, _, values in device.arrivals[:-2])
    assert device.arrivals[-2][2] == device.arrivals[-1][2] == {"a": 0.0, "b": 1.0}
    assert device.scalars.defer(0, None, last) == {}


def test_a_value_that_cannot_be_copied_costs_only_itself(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = device.stream.copy

    def fail(slot: torch.Tensor, value: torch.Tensor) -> None:
        if value == 13:
            raise RuntimeError
        copy(slot, value)

    monkeypatch.setattr(device.stream, "copy", fail)
    refused = device.scalars.defer(0, None, {"a": on_device(1.0), "odd": on_device(13.0), "b": on_device(2.0)})
    assert refused == {"odd": "it cannot be copied from its device (RuntimeError)"}
    assert device.scalars.defer(0, None, {"odd": on_device(13.0)}).keys() == {"odd"}
    device.arrive()
    assert device.arrivals == [(0, None, {"a": 1.0, "b": 2.0})]


def test_when_the_device_fails_what_is_under_way_is_counted_as_lost_and_nothing_is_raised(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for step in range(3):
        device.scalars.defer(step, None, {"loss": on_device(0.5), "norm": on_device(0.5)})
    monkeypatch.setattr(device.stream.events[0], "query", fail)
    device.scalars.poll()
    assert (device.arrivals, device.arrivals.lost) == ([], 6)
    monkeypatch.setattr(device.stream, "record", fail)
    assert device.scalars.defer(3, None, {"loss": on_device(0.5)}).keys() == {"loss"}
    monkeypatch.setattr(device.stream, "is_capturing", fail)
    assert device.scalars.defer(4, None, {"loss": on_device(0.5)}).keys() == {"loss"}
    device.scalars.drain(0.0)
    assert device.arrivals.lost == 6


# Where nothing may be touched


def test_while_a_graph_is_captured_nothing_is_allocated_copied_or_asked(device: Device) -> None:
    device.stream.capturing = True
    assert device.scalars.defer(0, None, {"loss": on_device(0.5)}) == {"loss": CAPTURED}
    assert (device.stream.memories, device.stream.events) == (0, [])
    device.stream.capturing = False
    device.scalars.defer(1, None, {"loss": on_device(0.5)})
    device.stream.advance()
    device.stream.capturing = True
    assert device.scalars.defer(2, None, {"loss": on_device(0.5)}) == {"loss": CAPTURED}
    device.scalars.poll()
    assert (device.arrivals, device.stream.events[0].threads) == ([], set())
    device.stream.capturing = False
    device.scalars.poll()
    assert device.arrivals == [(1, None, {"loss": 0.5})]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_inside_a_compiled_function_nothing_is_allocated_copied_or_asked(device: Device) -> None:
    refused: list[dict[str, str]] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = x * 2
        refused.append(device.scalars.defer(0, None, {"loss": loss}))
        device.scalars.poll()
        return loss + 1

    compiled = torch.compile(step, backend="eager")
    assert [float(compiled(torch.tensor(float(x)))) for x in range(3)] == [1.0, 3.0, 5.0]
    torch.compiler.reset()
    assert refused == [{"loss": COMPILED}] * 3
    assert (device.stream.memories, device.stream.events, device.arrivals) == (0, [], [])
    step(torch.tensor(1.0))
    assert (refused[-1], len(device.stream.events)) == ({}, 1)


# Threads, forks, the end


def test_a_ring_belongs_to_its_thread_and_no_other_asks_its_events(device: Device) -> None:
    pushed_once, polled = threading.Event(), threading.Event()

    def work() -> None:
        device.scalars.defer(1, "theirs", {"loss": on_device(1.0)})
        pushed_once.set()
        assert polled.wait(DEADLINE)
        device.scalars.poll()

    thread = threading.Thread(target=work)
    thread.start()
    assert pushed_once.wait(DEADLINE)
    device.scalars.defer(0, "ours", {"loss": on_device(0.0)})
    device.arrive()
    assert [tag for _, tag, _ in device.arrivals] == ["ours"]
    device.scalars.drain(0.0)
    assert ([tag for _, tag, _ in device.arrivals], device.arrivals.lost) == (["ours"], 1)
    polled.set()
    thread.join()
    assert [tag for _, tag, _ in device.arrivals] == ["ours", "theirs"]
    assert [event.threads for event in device.stream.events] == [{thread.ident}, {threading.get_ident()}]
    assert device.stream.memories == 2


def test_values_of_a_thread_that_is_gone_are_handed_over_at_the_end(device: Device) -> None:
    in_thread(lambda: device.scalars.defer(1, "theirs", {"loss": on_device(1.0)}))
    device.arrive()
    assert device.arrivals == []
    device.scalars.drain(DEADLINE)
    assert (device.arrivals, device.arrivals.lost) == ([(1, "theirs", {"loss": 1.0})], 0)


def test_a_drain_waits_for_what_arrives_and_counts_what_does_not(device: Device) -> None:
    device.scalars.defer(0, None, {"loss": on_device(0.5)})
    later = threading.Timer(0.05, device.stream.advance)
    later.start()
    device.scalars.drain(DEADLINE)
    later.join()
    assert (device.arrivals, device.arrivals.lost) == ([(0, None, {"loss": 0.5})], 0)
    device.scalars.defer(1, None, {"loss": on_device(0.5), "norm": on_device(0.5)})
    device.scalars.drain(0.01)
    assert (len(device.arrivals), device.arrivals.lost) == (1, 2)


def test_a_push_in_the_midst_of_a_push_is_refused_and_disturbs_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = device.stream.copy
    refused: list[dict[str, str]] = []

    def interrupted(slot: torch.Tensor, value: torch.Tensor) -> None:
        refused.append(device.scalars.defer(1, "handler's", {"loss": on_device(9.0)}))
        device.scalars.poll()
        copy(slot, value)

    monkeypatch.setattr(device.stream, "copy", interrupted)
    assert device.scalars.defer(0, "main", {"a": on_device(1.0), "b": on_device(2.0)}) == {}
    device.arrive()
    assert device.arrivals == [(0, "main", {"a": 1.0, "b": 2.0})]
    assert refused == [{"loss": "it is pushed by a signal handler in the midst of another push"}] * 2


# In a run


def test_values_on_a_device_come_in_a_later_row_of_the_same_step(run: trackside.Run, stream: Stream) -> None:
    for step in range(4):
        run.push({"eval/bleu": 31.2}, step=step, lr=0.1, loss=on_device(step + 0.5), norm=on_device(step))
        stream.advance(1 if step != 1 else 0)
    stream.advance()
    rows, totals = unsent_rows(run)
    assert [row for row in rows if "lr" in row[1]] == [(step, {"eval/bleu": 31.2, "lr": 0.1}) for step in range(4)]
    assert [row for row in rows if "loss" in row[1]] == [
        (step, {"loss": step + 0.5, "norm": step}) for step in range(4)
    ]
    assert (totals.pushes, totals.steps, totals.dropped) == (4, 4, 0)


def test_without_a_step_pushes_of_nothing_but_values_on_a_device_are_a_step_each(
    run: trackside.Run, stream: Stream
) -> None:
    for number in range(3):
        run.push(loss=on_device(float(number)))
        run.push(norm=on_device(float(-number)))
    stream.advance()
    rows, totals = unsent_rows(run)
    expected = [row for step in range(3) for row in ((step, {"loss": float(step)}), (step, {"norm": float(-step)}))]
    assert rows == expected
    assert (totals.pushes, totals.steps, totals.dropped) == (6, 3, 0)


def test_an_unreadable_value_is_counted_and_warned_about_and_still_present_in_its_step(
    run: trackside.Run, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.capturing = True
    for _ in range(3):
        run.push(loss=on_device(0.5), lr=0.1)
    rows, totals = unsent_rows(run)
    assert rows == [(step, {"lr": 0.1}) for step in range(3)]
    assert (totals.pushes, totals.dropped) == (3, 3)
    assert [record.getMessage() for record in caplog.records if "loss" in record.getMessage()] == [
        f"trackside: loss: {CAPTURED}; it is dropped, and so are further ones"
    ]


def test_a_tensor_of_several_elements_on_a_device_is_no_number(run: trackside.Run, stream: Stream) -> None:
    run.push(step=1, loss=on_device(0.5), logits=on_device([0.5, 0.5]), phase=on_device(1j))
    stream.advance()
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"loss": 0.5})], 2)


def test_a_nan_on_a_device_is_counted_and_amounts_are_summed(run: trackside.Run, stream: Stream) -> None:
    for step in range(2):
        run.push(step=step, loss=on_device(math.nan), tokens=on_device(2**40))
    stream.advance()
    _, totals = unsent_rows(run)
    assert (totals.nonfinite, totals.tokens) == ({"loss": 2}, 2.0**41)


def test_without_values_on_a_device_nothing_of_it_is_made(run: trackside.Run) -> None:
    run.push(step=1, loss=0.5, tensor=torch.tensor(0.5), text="none")
    assert not run.queue.polls


def test_the_wait_for_the_device_is_part_of_the_time_to_flush(
    run: trackside.Run, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(DeviceScalars, "drain", lambda _, seconds: given.append(seconds) or 0.375)  # type: ignore[func-returns-value]
    monkeypatch.setattr("trackside.transport.sender.Sender.end", lambda *_, timeout, **__: given.append(timeout))
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0.5")
    run.push(step=1, loss=on_device(0.5))
    run.finish()
    assert given == [0.5, 0.125]


def test_ctrl_c_in_that_wait_does_not_keep_the_end_from_being_sent(
    run: trackside.Run, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run.push(step=1, lr=0.1, loss=on_device(0.5))
    monkeypatch.setattr(device_module, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    assert run.queue.session.ended


def test_what_does_not_arrive_before_the_end_is_counted(
    run: trackside.Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_queue, "DRAIN_SECONDS", 0.01)
    run.push(step=1, loss=on_device(0.5), lr=0.1)
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"lr": 0.1})], 1)
    assert "a value on a device did not arrive before the end" in caplog.text


def test_dropping_the_oldest_rows_counts_a_push_once(run: trackside.Run, stream: Stream) -> None:
    with undrained(run):
        for step in range(10):
            run.push(step=step, loss=on_device(float(step)))
            stream.advance()
        for step in range(10, 7 + ROWS_WAITING):
            run.push(step=step, lr=0.1)
    rows, totals = unsent_rows(run)
    assert rows[:2] == [(8, {"loss": 8.0}), (9, {"loss": 9.0})]
    assert (totals.pushes, totals.dropped) == (7 + ROWS_WAITING, 8)


def test_wide_pushes_on_a_device_are_counted_in_and_out(run: trackside.Run, stream: Stream) -> None:
    for step in range(3):
        run.push({f"layer/{number}": on_device(number) for number in range(100)}, step=step)
        stream.advance()
    rows, _ = unsent_rows(run)
    assert [(step, len(values)) for step, values in rows] == [(step, 100) for step in range(3)]
    assert run.queue.session.heavy_in == run.queue.session.heavy_out == 300


# DTensors


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A mesh of this process alone."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_local_part_of_a_dtensor_is_read_without_a_collective(
    run: trackside.Run, stream: Stream, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.tensor import DTensor, Partial

    unreduced = DTensor.from_local(torch.tensor(0.5), mesh, [Partial()])
    empty = DTensor.from_local(torch.tensor([]), mesh, [Partial()])
    weight = DTensor.from_local(torch.tensor(0.25, requires_grad=True), mesh, [Partial()])
    assert local_part(0.5) == 0.5
    for collective in ("full_tensor", "redistribute"):
        monkeypatch.setattr(DTensor, collective, lambda *_: pytest.fail("a collective"))
    monkeypatch.setattr(DTensor, "__torch_dispatch__", classmethod(lambda *_: pytest.fail("an operation on a DTensor")))
    monkeypatch.setattr(numbers, "is_on_device", lambda value: isinstance(value, torch.Tensor) and value.numel() == 1)
    run.push(step=1, norm=unreduced, none=empty, weight=weight)
    monkeypatch.setattr(numbers, "is_on_device", is_on_device)
    run.push(step=2, norm=unreduced)
    stream.advance()
    rows, totals = unsent_rows(run)
    assert sorted(rows, key=lambda row: row[0]) == [(1, {"norm": 0.5, "weight": 0.25}), (2, {"norm": 0.5})]
    assert totals.dropped == 1


# Whole scripts

SCRIPT = """
import os, sys, threading
import trackside, torch
sys.path.append(os.environ["TESTS"])
from client.stream import Stream, on_device
from trackside import device_scalars as device

stream = Stream()
device.Cuda = lambda: stream
"""


def messages_of(router: Router, tmp_path: Path, code: str, ends: int = 1) -> list[Any]:
    """Run a script until it exits without an error; return the messages of its sessions."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(code))
    process = processes.start(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", str(script)],
        env=processes.clean_environ({"TRACKSIDE_ENDPOINT": router.endpoint, "TESTS": str(processes.ROOT / "tests")}),
        stderr=subprocess.PIPE,
        text=True,
    )
    messages = [message for session in router.serve(ends).values() for message in session]
    assert (process.communicate(timeout=DEADLINE)[1], process.returncode) == ("", 0)
    return messages


def test_the_last_loss_of_a_run_and_of_a_script_arrives_though_the_device_is_behind(
    router: Router, tmp_path: Path
) -> None:
    code = """
        def push(run):
            run.push(step=7, loss=on_device(0.5))
            stream.advance()

        with trackside.init("with") as run:
            push(run)
        push(run := trackside.init("finish"))
        run.finish()
        trackside.init("script")
        for step in range(5):
            trackside.push(step=step, loss=on_device(step + 0.5))
        threading.Timer(0.05, stream.advance).start()
        """
    messages = messages_of(router, tmp_path, code, ends=3)
    assert pushed(messages) == [(7, {"loss": 0.5})] * 2 + [(step, {"loss": step + 0.5}) for step in range(5)]
    assert messages[-1].body.totals.dropped == 0


def test_a_forked_child_asks_and_frees_nothing_of_its_parents(router: Router, tmp_path: Path) -> None:
    messages = messages_of(
        router,
        tmp_path,
        """
        import gc
        run = trackside.init("one")
        trackside.init("two")
        run.push(step=1, loss=on_device(0.5))
        stream.advance()
        child = os.fork()
        if child == 0:
            query, events = [], stream.events
            type(events[0]).query = lambda event: query.append(1)
            type(events[0]).__del__ = lambda event: os.write(2, b"freed")
            del events, run
            trackside.push(step=2, loss=on_device(9.0))
            stream.events.clear()
            own = trackside.init(endpoint="ipc:///nowhere", enabled=False)
            own.push(step=2, loss=on_device(9.0))
            trackside.finish()
            gc.collect()
            sys.exit(len(query))
        assert os.waitpid(child, 0)[1] == 0
        run.push(step=2, loss=on_device(0.25))
        stream.advance()
        """,
        ends=2,
    )
    assert pushed(messages) == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
