"""Captures of modules: a trace by the modules' names, and the time of each with and without the modules that it calls."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripted_recorder import answering

from trackside.wire import ModuleCall, ModuleCalls
from trackside_daemon.captures.kinds.modules import UNANSWERED, Modules
from trackside_daemon.model.capture import Capture, RankAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

CAPTURE = Capture("1", "id-1", 0, "modules", "person", 1.0)


def recorded(directory: Path, *answers: RankAnswer) -> Mapping[int, Path | str]:
    return Modules(answering(*answers), lambda _run, _attempt: 0.01).record(
        CAPTURE, [0, 1], directory, threading.Event()
    )


def calls() -> ModuleCalls:
    """Return two steps of a model with two blocks, inner calls before outer ones as a client has them."""
    found = ModuleCalls(["Net", "blocks.0.attn", "blocks.1"], ["Net", "Attention", "Block"], 2, compiled=3)
    for step in (0, 1):
        found.calls += [
            ModuleCall(1, step, 7, 10.0 + step, 0.002, 100, 64, 0.5 + step, 0.02),
            ModuleCall(2, step, 7, 10.003 + step, 0.001, 100, 32, 0.53 + step, 0.01),
            ModuleCall(0, step, 7, 10.0 + step, 0.005, 200, 128, 0.5 + step, 0.035),
        ]
    return found


def test_a_summary_has_each_module_by_its_own_time_a_step(tmp_path: Path) -> None:
    found = recorded(tmp_path, RankAnswer(0, 0.1, calls()))
    assert found[1] == UNANSWERED
    path = found[0]
    assert isinstance(path, Path)
    summary = Modules.summarize({0: path})
    rows = summary["ranks"]["0"]["modules"]
    assert [row["name"] for row in rows] == ["blocks.0.attn", "blocks.1", "Net"]
    assert [row["own"] for row in rows] == pytest.approx([0.002, 0.001, 0.002])
    assert [row["gpu_own"] for row in rows] == pytest.approx([0.02, 0.01, 0.005])
    assert [(row["calls"], row["activations"]) for row in rows] == [(1, 64), (1, 32), (1, 128)]
    lines = Modules.text(summary)
    assert lines[0].startswith("rank 0: 3 modules in 2 steps")
    assert lines[1] == "3 modules left out: compiled code calls no hooks"
    assert lines[3].split()[:2] == ["blocks.0.attn", "Attention"]


def test_the_file_is_a_chrome_trace_by_the_names_of_modules(tmp_path: Path) -> None:
    path = recorded(tmp_path, RankAnswer(0, 0.1, calls()))[0]
    assert isinstance(path, Path)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    on_gpu = [event for event in events if event["pid"] == 2]
    assert len(on_gpu) == 6
    first = next(event for event in events if event["name"] == "blocks.0.attn")
    assert (first["ts"], first["dur"], first["args"]["class"]) == (0.0, pytest.approx(2000), "Attention")


def test_a_rank_without_calls_has_its_reason(tmp_path: Path) -> None:
    assert recorded(tmp_path, RankAnswer(0, 0.1, ModuleCalls(error="it watches no model")))[0] == "it watches no model"


def test_calls_of_a_module_that_has_no_name_cost_that_rank_alone(tmp_path: Path) -> None:
    wrong = ModuleCalls(["Net"], ["Net"], 1, [ModuleCall(5, 0, 7, 1.0, 0.1)])
    found = recorded(tmp_path, RankAnswer(0, 0.1, wrong), RankAnswer(1, 0.1, calls()))
    assert found[0] == "its calls name no module of it"
    assert isinstance(found[1], Path)
