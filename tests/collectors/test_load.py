"""Load averages and hung tasks, read from small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside_daemon.collectors.host.host import LoadCollector
from trackside_daemon.model.families import host

PLAIN = Path(__file__).parent / "machines" / "plain" / "proc"


def test_a_kernel_that_does_not_count_hung_tasks_has_averages_alone(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("0.50 0.25 0.00 1/92 21091\n")
    assert [sample.metric for sample in LoadCollector(tmp_path).collect()] == list(host.LOADS)


@pytest.mark.parametrize("text", ["0.50 0.25 none 1/92 21091\n", "0.50 0.25\n", ""])
def test_a_file_without_three_numbers_is_named_with_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "loadavg").write_text(text)
    with pytest.raises(ValueError, match=rf"/loadavg: .*'{text.strip()}', not a number; .*path\.procfs"):
        LoadCollector(tmp_path).collect()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path\.procfs name it\?: '.*/loadavg'$"):
        LoadCollector(tmp_path).collect()


def test_the_host_that_runs_the_test_can_be_read() -> None:
    assert {sample.metric for sample in LoadCollector().collect()} >= set(host.LOADS)
