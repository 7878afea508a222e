"""Texts of others that were chosen to cost the square of their length, or more, cost little."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, history, opened, session
from session_records import batch_ingested

from trackside.limits import CODE_KEY
from trackside.wire import MediaItem
from trackside_daemon.bridges.file_runs import JsonRun
from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.cli.sources.file_source import FileSource
from trackside_daemon.config.near import near_name
from trackside_daemon.questions import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    begun = time.thread_time()
    yield
    assert time.thread_time() - begun < 5.0


def test_code_that_takes_hours_to_compare_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "DIFF_SECONDS", 0.5)
    with history(tmp_path) as one:
        for run in "ab":
            lines = "\n".join(random.Random(run).choices([chr(place) for place in range(33, 160)], k=60_000))
            code = MediaItem("text", CODE_KEY, round(BEGIN * 1e9), f"===== x.py\n{lines}\n".encode(), 1)
            one.put([opened(run), batch_ingested(session(run), 1, media=[code])])
    found = FileSource(tmp_path, print).ask(artifacts.Code(run=("a", "b")))
    assert found == {"diff": ["x.py: takes too long to be compared"]}


def test_names_that_a_run_has_chosen_are_compared_with_a_wrong_one_as_far_as_that_takes_no_time() -> None:
    chosen = random.Random(0)
    wrong, *names = ["".join(chosen.choices("ab", k=199)) for _ in range(2000)]
    assert near_name(wrong, [*names, "loss"]) == ""
    assert near_name("los", [*names, "loss"]) == "; did you mean loss?"


def test_a_damaged_document_is_not_read_from_each_of_its_objects_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"step":[' * 900 + "1," * 1_000_000)
    with pytest.raises(ForeignRunError, match="JSON is expected"):
        list(JsonRun(path, "a").read())
