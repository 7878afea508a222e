"""Classes of bottleneck in hand-made traces; test_pytorch.py and tests/end_to_end/test_captures.py have real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from captures.summary.traces import Writer, capture, healthy, summary

if TYPE_CHECKING:
    from collections.abc import Callable

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(step: Callable[[Writer], None], steps: int = 11) -> Writer:
    writer = Writer(100.0)
    for _ in range(steps):
        step(writer)
        writer.call("aten::mm", 1000.0)
        writer.optimizer()
    return writer


def data_wait(writer: Writer) -> None:
    writer.add("loader.py(88): __getitem__", writer.now + 10, 8000.0, "python_function")
    writer.call(LOADER, 9000.0, "user_annotation")


def slow_function(writer: Writer) -> None:
    writer.call("train.py(12): augment", 9000.0, "python_function")


def no_stacks(writer: Writer) -> None:
    writer.call("aten::sum", 30.0)
    writer.now += 9000.0


def tiny_operators(writer: Writer) -> None:
    for _ in range(2000):
        writer.call("aten::add", 3.0)
        writer.now += 1.0


def interrupted_tiny_operators(writer: Writer) -> None:
    """Sum to more than the launch of each, because other processes of a busy machine interrupt one in a hundred."""
    for index in range(2000):
        writer.call("aten::add", 3000.0 if index % 100 == 0 else 3.0)


def once_interrupted_tiny_operators(writer: Writer) -> None:
    """Sum to less than the interruption of another operator in one step."""
    for index in range(2000):
        writer.call("aten::to", 60_000.0 if index == 0 and 20_000 < writer.now < 30_000 else 1.0)
        writer.call("aten::add", 3.0)


def copies(writer: Writer) -> None:
    writer.add("aten::to", writer.now, 9000.0)
    writer.call("aten::copy_", 8990.0)


def gloo_wait(writer: Writer) -> None:
    writer.add("gloo:all_reduce", writer.now, 9000.0, "user_annotation", tid=99)
    writer.now += 9000.0


def gloo_wait_in_a_function(writer: Writer) -> None:
    writer.add("train.py(34): main", writer.now, 12000.0, "python_function")
    gloo_wait(writer)
    writer.call("train.py(12): augment", 3000.0, "python_function")


def large_operators(writer: Writer) -> None:
    writer.call("aten::convolution", 9000.0)


def allocations(writer: Writer) -> None:
    writer.call("aten::empty", 9000.0)


@pytest.mark.parametrize(
    ("planted", "expected", "name"),
    [
        (data_wait, "data", "loader.py:88 in __getitem__"),
        (slow_function, "host", "train.py:12 in augment"),
        (no_stacks, "host", "aten::sum"),
        (tiny_operators, "host", "aten::add"),
        (interrupted_tiny_operators, "host", "aten::add"),
        (once_interrupted_tiny_operators, "host", "aten::add"),
        (copies, "copy", "aten::copy_"),
        (gloo_wait, "communication", "gloo:all_reduce"),
        (large_operators, "compute", "aten::convolution"),
        (allocations, "memory", "aten::empty"),
    ],
)
def test_planted_on_a_cpu(planted: Callable[[Writer], None], expected: str, name: str) -> None:
    found = summary(training(planted))["bottleneck"]
    assert (found["class"], found["name"]) == (expected, name), found["text"]
    assert found["share"] > 0.5
    assert sum(found["shares"].values()) <= 1.001


def gpu_training(step: Callable[[Writer, int], None], steps: int = 11) -> Writer:
    writer = Writer(100.0)
    for number in range(steps):
        step(writer, number * 1000)
        writer.optimizer()
    return writer


def launch(
    writer: Writer, number: int, *, begin: float, duration: float, cat: str = "kernel", name: str = "aten::mm"
) -> None:
    """Add an operator, and the GPU work that it starts at *begin* after now."""
    args: dict[str, Any] = {"External id": number}
    kernel = {"kernel": "sm90_gemm", "gpu_memcpy": "Memcpy HtoD (Pageable -> Device)"}[cat]
    writer.add(kernel, writer.now + begin, duration, cat, tid=1007, **args, stream=7, device=0, correlation=number)
    writer.call(name, 20.0, **args)


def busy_gpu(writer: Writer, number: int) -> None:
    launch(writer, number, begin=100, duration=9900)
    writer.now += 9900


def starved_gpu(writer: Writer, number: int) -> None:
    for index in range(200):
        launch(writer, number + index, begin=5, duration=4)
        writer.now += 30


def synchronised_gpu(writer: Writer, number: int) -> None:
    """An ``.item()`` for each piece of work, so that the GPU waits for the host after each."""
    for index in range(10):
        launch(writer, number + index, begin=10, duration=200)
        writer.add("cudaStreamSynchronize", writer.now, 195.0, "cuda_runtime")
        writer.call("aten::_local_scalar_dense", 200.0)
        writer.now += 600


def copying_gpu(writer: Writer, number: int) -> None:
    launch(writer, number, begin=10, duration=500)
    launch(writer, number + 1, begin=600, duration=9000, cat="gpu_memcpy", name="aten::copy_")
    writer.now += 9500


def allocating_gpu(writer: Writer, number: int) -> None:
    launch(writer, number, begin=10, duration=500)
    writer.call("cudaMalloc", 9000.0, "cuda_runtime")


def allocating_busy_gpu(writer: Writer, number: int) -> None:
    """Allocate while the GPU computes, which costs no time."""
    launch(writer, number, begin=10, duration=9000)
    writer.call("cudaMalloc", 9000.0, "cuda_runtime")


@pytest.mark.parametrize(
    ("planted", "expected", "name"),
    [
        (busy_gpu, "compute", "aten::mm"),
        (starved_gpu, "host", "aten::mm"),
        (synchronised_gpu, "copy", "aten::_local_scalar_dense"),
        (copying_gpu, "copy", "aten::copy_"),
        (allocating_gpu, "memory", ""),
        (allocating_busy_gpu, "compute", "aten::mm"),
    ],
)
def test_planted_on_a_gpu(planted: Callable[[Writer, int], None], expected: str, name: str) -> None:
    found = summary(gpu_training(planted))
    assert found["device"] == "gpu"
    assert (found["bottleneck"]["class"], found["bottleneck"]["name"]) == (expected, name), found["bottleneck"]["text"]


def test_exposed_and_overlapped_communication_of_a_gpu() -> None:
    def step(writer: Writer, number: int) -> None:
        launch(writer, number, begin=0, duration=1000)
        writer.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL", writer.now + 480, 5500, "kernel", tid=1020, stream=20)
        writer.now += 5980

    parts = summary(gpu_training(step))["parts"]
    assert parts["overlapped"] == pytest.approx(0.0005)
    assert parts["exposed"] == pytest.approx(0.005)


def test_the_rank_that_arrives_last_is_named_with_its_own_bottleneck() -> None:
    found = capture(training(gloo_wait), training(slow_function))["bottleneck"]
    assert (found["class"], found["rank"], found["last"]) == ("communication", 0, 1)
    assert "rank 1 arrives last: host: " in found["text"]
    assert "train.py:12" in found["text"]


def test_ranks_that_wait_for_no_other_have_no_last_one() -> None:
    assert "last" not in capture(healthy(1), healthy(2))["bottleneck"]


def test_without_ranks_there_is_no_bottleneck() -> None:
    assert capture()["bottleneck"] == {}


def test_the_time_of_a_function_is_not_that_in_which_it_waits_for_other_ranks() -> None:
    functions = {row["name"]: row["seconds"] for row in summary(training(gloo_wait_in_a_function))["functions"]}
    assert functions["train.py:34 in main"] < 0.0001
    assert functions["train.py:12 in augment"] == pytest.approx(0.003)
