"""Calls of a thread: their own time and their callers."""

from __future__ import annotations

import pytest
from captures.summary.traces import Writer

from trackside_daemon.captures.summary.tables import nest, user_source
from trackside_daemon.captures.summary.trace import decode


def own(writer: Writer) -> dict[str, float]:
    return {call.event.name: call.own for call in nest(decode(writer.text()).events)}


def test_own_time_excludes_calls() -> None:
    writer = Writer()
    writer.add("aten::linear", 0, 100)
    writer.add("aten::t", 10, 20)
    writer.add("aten::addmm", 40, 50)
    writer.add("aten::copy_", 50, 30)
    assert own(writer) == {"aten::linear": 30, "aten::t": 20, "aten::addmm": 20, "aten::copy_": 30}


def test_a_mark_that_outlives_the_function_that_began_it_encloses_what_follows() -> None:
    writer = Writer()
    writer.add("loader.py(3): __next__", 0, 100, "python_function")
    writer.add("torch/autograd/profiler.py(9): __enter__", 5, 10, "python_function")
    writer.add("enumerate(DataLoader)#_Iter.__next__", 12, 80, "user_annotation")
    writer.add("loader.py(5): read", 20, 60, "python_function")
    assert own(writer)["loader.py(3): __next__"] == 20 - 10
    assert own(writer)["enumerate(DataLoader)#_Iter.__next__"] == 20


def test_the_source_of_a_call_is_the_users_innermost_function() -> None:
    writer = Writer()
    writer.add("train.py(20): main", 0, 100, "python_function")
    writer.add("torch/nn/modules/linear.py(130): forward", 10, 50, "python_function")
    writer.add("aten::addmm", 20, 30)
    writer.add("aten::mm", 70, 10)
    calls = {call.event.name: call for call in nest(decode(writer.text()).events)}
    assert calls["aten::addmm"].source == calls["aten::mm"].source == "train.py:20 in main"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("loader.py(88): __getitem__", "loader.py:88 in __getitem__"),
        ("/home/user/my project/train.py(3): <module>", "/home/user/my project/train.py:3 in <module>"),
        ("/tmp/ipykernel_5/77.py(1): <cell line: 1>", "/tmp/ipykernel_5/77.py:1 in <cell line: 1>"),
        ("transformers/trainer.py(9): train", "transformers/trainer.py:9 in train"),
        ("torch/nn/modules/linear.py(130): forward", ""),
        ("threading.py(5): wait", ""),
        ("<frozen abc>(117): __instancecheck__", ""),
        ("<built-in function sleep>", ""),
    ],
)
def test_sources(name: str, source: str) -> None:
    assert user_source(name) == source
