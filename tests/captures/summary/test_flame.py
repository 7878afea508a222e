"""The tree of calls."""

from __future__ import annotations

from typing import Any

from captures.summary.traces import Writer, healthy, summary

from trackside_daemon.captures.summary.trace_summary import NODES


def training(steps: int = 3) -> Writer:
    writer = Writer(100.0)
    writer.add("train.py(30): main", 0.0, 1e6, "python_function")
    for _ in range(steps):
        writer.add("train.py(12): augment", writer.now, 6000.0, "python_function")
        writer.add("aten::mul", writer.now + 1000, 2000.0)
        writer.now += 6000
        writer.call("<built-in method run_backward of Engine object at 0x7f00>", 3000.0, "python_function")
        writer.optimizer(1000.0)
    return writer


def names(node: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: (round(one["seconds"] * 1000, 3), names(one)) for one in node["children"]}


def test_calls_are_nested_and_last_as_long_as_all_that_they_call() -> None:
    root = summary(training(), 2)["flame"]
    assert root["name"] == "step"
    assert round(root["seconds"] * 1000, 3) == 10.0
    assert names(root) == {
        "train.py:30 in main": (
            10.0,
            {
                "train.py:12 in augment": (6.0, {"aten::mul": (2.0, {})}),
                "<built-in method run_backward of Engine": (3.0, {}),
                "Optimizer.step#SGD.step": (1.0, {}),
            },
        )
    }


def count(node: dict[str, Any]) -> int:
    return 1 + sum(map(count, node["children"]))


def test_small_calls_are_left_out_and_few_are_retained() -> None:
    more: dict[str, Any] = {f"op{index}": 0.2 for index in range(2 * NODES)}
    assert count(summary(healthy(1, **more))["flame"]) <= NODES + 1


def test_deep_recursion_is_cut_off() -> None:
    writer = Writer(0.0)
    for depth in range(5000):
        writer.add(f"train.py({depth}): f", depth * 0.1, 20_000.0 - depth * 0.2, "python_function")
    writer.now = 20_000.0
    writer.call("aten::mm", 10.0)
    writer.optimizer()
    writer.call("aten::mm", 10.0)
    writer.optimizer()
    assert count(summary(writer, 2)["flame"]) < 200
