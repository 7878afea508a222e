"""The tail of PyTorch's flight recorder as plain data, from each of its forms."""

from __future__ import annotations

import gc
import json
import pickle
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trackside.captures.flight_recorder import THREADS, flight
from trackside.environment.exit_status import known_reason
from trackside.limits import FLIGHT_ENTRIES, FLIGHT_GROUPS
from trackside.wire import CLOSED, MESSAGE_BYTES, Envelope, encode

if TYPE_CHECKING:
    from collections.abc import Callable


def entry(number: int, *, group: tuple[str, str] = ("0", "default_pg"), **more: Any) -> dict[str, Any]:
    """Return an entry as PyTorch 2.13 writes it."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": list(group),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1,
        "input_sizes": [[4, 3], [2]],
        "input_dtypes": ["Float", "Half"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "retired": False,
        "is_p2p": False,
        **more,
    }


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that installs a PyTorch with these private functions."""

    def install(**functions: Callable[..., bytes]) -> None:
        monkeypatch.setitem(sys.modules, "torch._C", SimpleNamespace(_distributed_c10d=SimpleNamespace(**functions)))

    return install


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.10", "entries": list(entries), "pg_config": {"0": {"ranks": "[0, 3]", "desc": "default_pg"}}}


def test_the_json_form_becomes_plain_data(install: Callable[..., None]) -> None:
    text = json.dumps(dump(entry(1, retired=True), entry(2, state="completed"), entry(3, state="started"))).encode()
    install(_dump_nccl_trace_json=lambda: text)
    (group,) = flight().groups
    assert (group.backend, group.name, group.description, group.ranks) == ("nccl", "0", "default_pg", [0, 3])
    assert [one.state for one in group.entries] == ["completed", "completed", "started"]
    last = group.entries[-1]
    assert (last.sequence, last.operation, last.shape, last.elements) == (3, "all_reduce", "[4, 3] Float, [2] Half", 14)
    assert 1e9 < last.age < 1e10, "seconds since 1970"


def test_the_end_of_a_peer_that_gloo_reports_has_the_newest_collective_of_this_rank(
    install: Callable[..., None],
) -> None:
    read = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:8579: Connection reset by peer"
    install(_dump_fr_trace_json=lambda: json.dumps(dump(entry(8, time_created_ns=2), entry(7))).encode())
    found = "8 of default_pg: all_reduce with [4, 3] Float, [2] Half"
    assert known_reason(RuntimeError(read)) == f"{CLOSED}{found}"
    install()
    assert known_reason(RuntimeError(read)) == ""


def test_the_pickle_form_of_an_older_version_becomes_the_same(install: Callable[..., None]) -> None:
    def old(collectives: bool, stacks: bool, active: bool) -> bytes:
        assert (collectives, stacks, active) == (True, False, False)
        return pickle.dumps(dump(entry(7, process_group=("0", "default_pg"), p2p_seq_id=2, is_p2p=True)))

    install(_dump_nccl_trace=old)
    (group,) = flight().groups
    (only,) = group.entries
    assert (only.sequence, only.p2p) == (2, True)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_pickle_form_is_faster_and_is_read_without_the_garbage_collector(
    install: Callable[..., None], enabled: bool
) -> None:
    def fast(*_: bool) -> bytes:
        assert not gc.isenabled()
        return pickle.dumps(dump(entry(7)))

    install(_dump_fr_trace=fast, _dump_fr_trace_json=lambda: b"{}")
    (gc.enable if enabled else gc.disable)()
    try:
        assert len(flight().groups) == 1
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_members_of_a_group_of_gloo_come_from_pytorch(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimpleNamespace(pg_names={"a": "0", "b": "5"}, pg_group_ranks={"a": {0: 0, 1: 1, 2: 2}, "b": {2: 0, 1: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    pair = {**dump(entry(1, group=("5", "pair"))), "pg_config": {"": {"ranks": "[]"}}}
    install(_dump_fr_trace_json=lambda: json.dumps(pair).encode())
    (group,) = flight().groups
    assert group.ranks == [2, 1]


def test_both_recorders_are_read_and_one_that_fails_costs_the_other_nothing(install: Callable[..., None]) -> None:
    gloo = json.dumps(dump(entry(1, profiling_name="gloo:broadcast"))).encode()

    def broken() -> bytes:
        raise RuntimeError("no recorder")

    install(_dump_fr_trace_json=lambda: gloo, _dump_nccl_trace_json=broken)
    assert [(one.backend, one.entries[0].operation) for one in flight().groups] == [("gloo", "broadcast")]
    install(_dump_fr_trace_json=lambda: b"not JSON", _dump_nccl_trace_json=lambda: b'{"entries": [{"state": 5}]}')
    assert flight().groups == []


def test_the_tail_of_each_group_is_bounded(install: Callable[..., None]) -> None:
    entries = [entry(number) for number in range(1, 2001)]
    many = [entry(1, group=(str(number), "x" * 10_000), state="y" * 10_000) for number in range(500)]
    install(_dump_fr_trace_json=lambda: json.dumps(dump(*entries, *many)).encode())
    found = flight()
    assert [one.sequence for one in found.groups[0].entries] == list(range(2001 - FLIGHT_ENTRIES, 2001))
    assert len(found.groups) == FLIGHT_GROUPS
    assert len(found.threads) <= THREADS
    assert sum(map(len, encode(Envelope("flight", bytes(16)), found))) < MESSAGE_BYTES / 4


def test_the_main_thread_comes_first_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._C", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = flight()
    assert found.groups == []
    assert next(iter(found.threads)).startswith("MainThread")
    assert "torch" not in sys.modules
