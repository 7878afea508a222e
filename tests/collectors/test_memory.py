"""Memory, read from a fixture tree."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.memory import MemoryCollector

PROC = Path(__file__).parent / "fixtures" / "proc"


def test_every_family_is_in_bytes() -> None:
    values = {sample.metric.name: sample.value for sample in MemoryCollector(PROC).collect()}
    assert values == {
        "trackside_host_memory_bytes": 24684084 * 1024,
        "trackside_host_memory_available_bytes": 24288036 * 1024,
        "trackside_host_memory_free_bytes": 24228636 * 1024,
        "trackside_host_memory_buffers_bytes": 2780 * 1024,
        "trackside_host_memory_cached_bytes": 226440 * 1024,
        "trackside_host_memory_shmem_bytes": 8872 * 1024,
        "trackside_host_memory_dirty_bytes": 16 * 1024,
        "trackside_host_memory_writeback_bytes": 4 * 1024,
        "trackside_host_memory_anonymous_bytes": 9644 * 1024,
    }


def test_a_field_that_the_kernel_lacks_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\n")
    assert [sample.value for sample in MemoryCollector(tmp_path).collect()] == [8192]


def test_the_host_that_runs_the_test_has_every_family() -> None:
    collector = MemoryCollector()
    assert {sample.metric for sample in collector.collect()} == set(collector.metrics)
