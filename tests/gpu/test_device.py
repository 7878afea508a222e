"""Values on a real GPU: right, each at its own step, and never waited for."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import Router, pushed, unsent_rows
from gpu.occupying import occupy
from processes import DEADLINE, clean_environ

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trackside

STEPS = 200
LONG = 2_000_000_000
"""GPU clock cycles: about a second, in which any number of pushes returns."""

pytestmark = [  # PyTorch's own: its sync debug mode, say, is a prototype
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:::torch"),
]


@pytest.fixture
def no_sync(gpu: None) -> Iterator[None]:
    """A mode in which PyTorch raises an error wherever the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu(value: object, **more: Any) -> torch.Tensor:
    return torch.tensor(value, device="cuda", **more)


def by_key(run: trackside.Run, key: str) -> tuple[list[tuple[int, float]], int]:
    """Wait for all work and the end of the run; return the samples of a key and the number of dropped values."""
    torch.cuda.synchronize()
    rows, totals = unsent_rows(run)
    return [(step, values[key]) for step, values in rows if key in values], totals.dropped


def test_pushes_do_what_never_synchronizes_and_the_values_are_right(run: trackside.Run, no_sync: None) -> None:
    weight = torch.ones((), device="cuda", requires_grad=True)
    for step in range(STEPS):
        loss = weight * step
        run.push(step=step, loss=loss, lr=0.1, norm=loss.detach().bfloat16())
    with pytest.raises(RuntimeError, match="synchroniz"):
        float(loss)
    torch.cuda.set_sync_debug_mode("default")
    norms = [(step, float(torch.tensor(step, dtype=torch.bfloat16))) for step in range(STEPS)]
    torch.cuda.synchronize()
    rows, totals = unsent_rows(run)
    assert [(step, values["loss"]) for step, values in rows if "loss" in values] == [(n, n) for n in range(STEPS)]
    assert [(step, values["norm"]) for step, values in rows if "norm" in values] == norms
    assert (totals.steps, totals.pushes, totals.dropped) == (STEPS, STEPS, 0)


def test_a_trace_of_pushes_shows_one_copy_a_value_one_event_a_push_and_no_wait(run: trackside.Run) -> None:
    losses = [on_gpu(float(step)) for step in range(STEPS)]
    norms = [on_gpu(float(step), dtype=torch.bfloat16) for step in range(STEPS)]
    run.push(step=-1, loss=losses[0])  # the ring is allocated
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):
        run.push(step=-1, norm=norms[0])  # the first trace of a process may begin late
    with torch.profiler.profile(activities=activities) as profile:
        with torch.profiler.record_function("pushes"):
            for step in range(STEPS):
                run.push(step=step, loss=losses[step], norm=norms[step])
        with torch.profiler.record_function("reads"):
            float(losses[0])
    calls = {name: runtime_calls(profile, name) for name in ("pushes", "reads")}
    assert calls["reads"]["cudaStreamSynchronize"] >= 1  # so that the trace is known to show them
    assert not [name for name in calls["pushes"] if "Synchronize" in name]
    assert not [name for name in calls["pushes"] if "Launch" in name or "Alloc" in name or "Malloc" in name]
    assert calls["pushes"]["cudaMemcpyAsync"] == 2 * STEPS
    assert sum(count for name, count in calls["pushes"].items() if "EventRecord" in name) <= STEPS
    assert by_key(run, "loss") == ([(-1, 0.0), *((step, step) for step in range(STEPS))], 0)


def runtime_calls(profile: torch.profiler.profile, region: str) -> Counter[str]:
    """Return the number of calls of each function of the CUDA runtime inside a region."""
    events = profile.events()
    outer = next(one for one in events if one.name == region and one.device_type == torch.autograd.DeviceType.CPU)
    inside = outer.time_range
    return Counter(
        event.name
        for event in events
        if event.name.startswith("cu") and inside.start <= event.time_range.start <= inside.end
    )


def test_a_push_returns_while_the_device_is_still_at_work(run: trackside.Run) -> None:
    run.push(step=0, loss=on_gpu(0.0))
    occupy(LONG)
    for step in range(1, 51):
        run.push(step=step, loss=torch.full((), float(step), device="cuda"))
    assert not torch.cuda.current_stream().query()
    assert by_key(run, "loss") == ([(step, step) for step in range(51)], 0)


def test_a_value_is_the_one_of_its_push_whatever_happens_to_the_tensor_or_its_memory_after(run: trackside.Run) -> None:
    occupy(LONG // 4)
    running = torch.zeros((), device="cuda")
    for step in range(STEPS):
        running += 1
        run.push(step=step, sum=running, square=running * running)
        running.mul_(1)
        torch.full((), -1.0, device="cuda")  # takes the memory of the square, which is free again
    torch.cuda.synchronize()
    rows, totals = unsent_rows(run)
    assert [values["sum"] for _, values in rows if "sum" in values] == list(range(1, STEPS + 1))
    assert [values["square"] for _, values in rows if "square" in values] == [n * n for n in range(1, STEPS + 1)]
    assert totals.dropped == 0


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float64, 0.1),
        (torch.float32, 1.5e38),
        (torch.bfloat16, -3.0e38),
        (torch.float16, 65504.0),
        (torch.float16, float("nan")),
        (torch.int64, 2**53 - 1),
        (torch.int32, -(2**31)),
        (torch.uint8, 255),
        (torch.bool, True),
        (torch.float8_e4m3fn, 448.0),
    ],
    ids=str,
)
def test_every_kind_of_number_arrives_as_it_would_be_read(run: trackside.Run, dtype: torch.dtype, value: float) -> None:
    tensor = torch.tensor(value).to(dtype).cuda()
    run.push(step=1, before=on_gpu(7), value=tensor, shaped=tensor.reshape(1, 1), after=on_gpu(-7.0))
    torch.cuda.synchronize()
    (_, row), *_ = [row for row in unsent_rows(run)[0] if row[1]]
    assert repr(row) == repr({"before": 7.0, "value": float(tensor), "shaped": float(tensor), "after": -7.0})


def test_pushes_around_and_inside_a_capture_leave_the_graph_whole(run: trackside.Run) -> None:
    static = torch.ones((), device="cuda")
    run.push(step=0, loss=static * 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = static * 2
        run.push(step=1, loss=loss, lr=0.1)
    for step in range(2, STEPS):
        static.fill_(step)
        graph.replay()
        run.push(step=step, loss=loss)
    losses, dropped = by_key(run, "loss")
    assert losses == [(0, 1.0), *((step, 2.0 * step) for step in range(2, STEPS))]
    assert dropped == 1


def test_the_first_push_of_all_may_be_inside_a_capture(run: trackside.Run) -> None:
    static = torch.ones((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = static * 2
        run.push(step=0, loss=loss)
    graph.replay()
    run.push(step=1, loss=loss)
    assert by_key(run, "loss") == ([(1, 2.0)], 1)


def test_the_output_of_a_compiled_step_with_cuda_graphs_is_read_before_the_next_overwrites_it(
    run: trackside.Run,
) -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(), backend="cudagraphs")
    with torch.no_grad():
        for step in range(STEPS):
            run.push(step=step, loss=compiled(torch.full((8,), float(step), device="cuda")))
    torch.compiler.reset()
    assert by_key(run, "loss") == ([(step, 16.0 * step) for step in range(STEPS)], 0)


def test_values_of_several_streams_and_threads_arrive(run: trackside.Run) -> None:
    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(STEPS):
                run.push(step=step, theirs=torch.full((), float(step), device="cuda"))

    thread = threading.Thread(target=work)
    thread.start()
    for step in range(STEPS):
        with torch.cuda.stream(torch.cuda.Stream() if step % 2 else torch.cuda.current_stream()):
            run.push(step=step, ours=torch.full((), float(step), device="cuda"))
    thread.join()
    torch.cuda.synchronize()
    rows, totals = unsent_rows(run)
    for key in ("ours", "theirs"):
        assert [(step, values[key]) for step, values in rows if key in values] == [(n, n) for n in range(STEPS)]
    assert totals.dropped == 0


def test_a_run_in_inference_mode_and_then_out_of_it_stores_all(run: trackside.Run) -> None:
    with torch.inference_mode():
        run.push(step=0, loss=on_gpu(0.5))
    run.push(step=1, loss=on_gpu(0.25, requires_grad=True))
    with torch.inference_mode():
        run.push(step=2, loss=on_gpu(0.125))
    assert by_key(run, "loss") == ([(0, 0.5), (1, 0.25), (2, 0.125)], 0)


def test_a_tensor_of_several_elements_is_no_number_and_nothing_waits_to_find_out(
    run: trackside.Run, no_sync: None
) -> None:
    run.push(step=1, logits=torch.zeros(2, device="cuda"), lr=0.1)
    rows, totals = unsent_rows(run)
    assert (rows, totals.dropped) == ([(1, {"lr": 0.1})], 1)


SCRIPT = """
import gc, os
import torch, trackside

run = trackside.init("one")
trackside.init("two")
for step in range(20):
    torch.cuda._sleep(10_000_000)
    run.push(step=step, loss=torch.full((), step + 0.5, device="cuda"))
"""
FORK = """
child = os.fork()
if child == 0:
    del run  # were the memory freed with it, PyTorch would abort the child
    gc.collect()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("more", ["", FORK], ids=["plain", "forked"])
def test_the_last_loss_of_a_script_arrives_and_a_forked_child_ends_as_it_would(
    gpu: None, router: Router, tmp_path: Path, more: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + more)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)],
        env=clean_environ({"TRACKSIDE_ENDPOINT": router.endpoint, "PYTHONPATH": os.pathsep.join(sys.path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    messages = [message for session in router.serve(ends=2).values() for message in session]
    output, errors = process.communicate(timeout=DEADLINE)
    assert (errors, process.returncode, output) == ("", 0, "7\n" if more else "")
    assert pushed(messages) == [(step, {"loss": step + 0.5}) for step in range(20)]


def test_the_host_time_of_a_push_is_printed(run: trackside.Run, capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.randn(4096, 4096, device="cuda")
    took: dict[str, list[float]] = {"push of 2 floats": [], "push of 2 values on the GPU": [], "float() of 2": []}
    for step in range(10 * STEPS):
        work = weights @ weights
        loss, norm = work[0, 0], work[0, 1]
        kind = list(took)[step % 3]
        begun = time.perf_counter()
        if kind == "push of 2 floats":
            run.push(step=step, loss=0.5, norm=0.5)
        elif kind == "float() of 2":
            float(loss), float(norm)
        else:
            run.push(step=step, loss=loss, norm=norm)
        took[kind].append((time.perf_counter() - begun) * 1e6)
    with capsys.disabled():
        for kind, times in took.items():
            times.sort()
            tail = times[len(times) * 99 // 100]
            print(f"\n{kind}: p50 {statistics.median(times):.1f} us, p99 {tail:.1f} us", end="")  # noqa: T201
    losses, dropped = by_key(run, "loss")
    assert (len(losses), dropped) == (len(took["push of 2 floats"]) + len(took["push of 2 values on the GPU"]), 0)
