"""Faults, swapping and OOM kills, read from small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside_daemon.collectors.host.host import VmstatCollector
from trackside_daemon.model.families import host

PLAIN = Path(__file__).parent / "machines" / "plain" / "proc"


def test_a_field_that_the_kernel_lacks_is_left_out_and_one_that_begins_alike_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 5\noom_kill_delayed 7\n")
    samples = VmstatCollector(tmp_path).collect()
    assert [(sample.metric, sample.value) for sample in samples] == [(host.VMSTAT["pgfault"], 5)]


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path\.procfs name it\?: '.*/vmstat'$"):
        VmstatCollector(tmp_path).collect()
    (tmp_path / "vmstat").write_text("nr_free_pages 5\n")
    with pytest.raises(ValueError, match=r"/vmstat has no oom_kill nor .* nor pswpout; .*path\.procfs"):
        VmstatCollector(tmp_path).collect()
    (tmp_path / "vmstat").write_text("pswpin 5\npgfault ?\n")
    with pytest.raises(ValueError, match=r"/vmstat: pgfault is '\?', not a number; .*path\.procfs"):
        VmstatCollector(tmp_path).collect()


def test_the_host_that_runs_the_test_has_faults() -> None:
    assert host.VMSTAT["pgfault"] in {sample.metric for sample in VmstatCollector().collect()}
