"""Snapshots of memory in the client: PyTorch's allocator with a fake CUDA, and tracemalloc."""

from __future__ import annotations

import sys
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trackside.captures.memory import MAX_SITES, TRACES_BYTES, memory

if TYPE_CHECKING:
    import pytest


def block(size: int, line: int | None, state: str = "active_allocated") -> dict[str, Any]:
    frames = [] if line is None else [{"filename": "/home/me/train.py", "line": line, "name": "step"}]
    return {"size": size, "state": state, "frames": frames}


class Cuda:
    """PyTorch's CUDA module as its snapshots are in 2.13."""

    def __init__(self, *blocks: dict[str, Any]) -> None:
        self.histories: list[tuple[Any, ...]] = []
        used = sum(one["size"] for one in blocks if one["state"] != "inactive")
        total = sum(one["size"] for one in blocks)
        self._segments = [{"device": 0, "total_size": total, "allocated_size": used, "blocks": list(blocks)}]
        self.memory = SimpleNamespace(_record_memory_history=self._record)

    def is_initialized(self) -> bool:
        return True

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return self._segments

    def _record(self, enabled: str, **options: str) -> None:
        self.histories.append((enabled, options))


def test_blocks_are_summed_by_their_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(block(10, 3), block(30, 7), block(25, 3), block(100, None, "inactive"))
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    (found,) = memory().allocators
    assert (found.name, found.allocated, found.reserved) == ("cuda:0", 65, 165)
    assert [(one.frames, one.bytes, one.count) for one in found.sites] == [
        (["/home/me/train.py:3 step"], 35, 2),
        (["/home/me/train.py:7 step"], 30, 1),
    ]
    assert cuda.histories == []


def test_stacks_are_recorded_from_the_first_snapshot_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(block(10, None))
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert [one.frames for one in memory().allocators[0].sites] == [[]]
    assert cuda.histories == [("state", {"context": "state", "stacks": "python"})]


def test_an_allocator_without_a_snapshot_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[Any]:
        raise RuntimeError("pluggable allocators have none")

    cuda = Cuda()
    cuda.memory_snapshot = fails  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert memory().errors == ["RuntimeError: pluggable allocators have none"]


def test_tracemalloc_is_read_where_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    assert memory().allocators == []
    tracemalloc.start(4)
    try:
        kept = [bytearray(1000) for _ in range(2000)]
        (found,) = memory().allocators
        assert found.name == "tracemalloc"
        assert len(found.sites) <= MAX_SITES
        largest = found.sites[0]
        assert largest.bytes > 2_000_000
        assert f"{__file__}:" in largest.frames[0]
        monkeypatch.setattr(tracemalloc, "get_tracemalloc_memory", lambda: TRACES_BYTES + 1)
        assert "reading them takes seconds" in memory().errors[0]
    finally:
        tracemalloc.stop()
    assert len(kept) == 2000
