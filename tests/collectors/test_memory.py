"""Memory, read from small trees; test_machines.py has every family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.host.host import MemoryCollector
from trackside_daemon.model.families.host import MEMINFO, SWAP_USED

if TYPE_CHECKING:
    from pathlib import Path


def test_a_field_that_the_kernel_lacks_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\n")
    assert [sample.value for sample in MemoryCollector(tmp_path).collect()] == [8192]


def test_swap_that_is_used_is_what_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("SwapTotal:       8388604 kB\nSwapFree:        6291452 kB\n")
    values = {sample.metric.name: sample.value for sample in MemoryCollector(tmp_path).collect()}
    assert values == {
        "trackside_host_swap_bytes": 8388604 * 1024,
        "trackside_host_swap_used_bytes": (8388604 - 6291452) * 1024,
    }


def test_a_field_with_the_same_ending_is_not_mistaken_for_another(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("SwapCached:     7 kB\nCached:         8 kB\n")
    assert [sample.value for sample in MemoryCollector(tmp_path).collect()] == [8192]


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path\.procfs name it\?: '.*/meminfo'$"):
        MemoryCollector(tmp_path).collect()
    (tmp_path / "meminfo").write_text("")
    with pytest.raises(ValueError, match=r"/meminfo has no MemTotal nor .* nor SwapTotal; .*path\.procfs"):
        MemoryCollector(tmp_path).collect()
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\nDirty:\n")
    with pytest.raises(ValueError, match=r"/meminfo: Dirty is '', not a number; .*path\.procfs"):
        MemoryCollector(tmp_path).collect()


def test_the_host_that_runs_the_test_has_every_family() -> None:
    assert {sample.metric for sample in MemoryCollector().collect()} == {*MEMINFO.values(), SWAP_USED}
