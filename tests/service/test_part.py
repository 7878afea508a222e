"""The list of what a daemon starts and stops."""

from __future__ import annotations

from functools import partial

import pytest

from trackside_daemon.service.daemon import PartList, StartAndStop


def fail(calls: list[str], name: str) -> None:
    calls.append(name)
    raise RuntimeError(name)


def test_parts_stop_in_the_reverse_order_of_their_start() -> None:
    calls: list[str] = []
    add = calls.append
    parts = PartList(
        [
            StartAndStop(stop=partial(add, "a-")),
            StartAndStop(partial(add, "b+"), partial(add, "b-")),
            StartAndStop(partial(add, "c+")),
        ]
    )
    parts.start()
    parts.stop()
    assert calls == ["b+", "c+", "b-", "a-"]


def test_parts_that_did_not_start_are_not_stopped() -> None:
    calls: list[str] = []
    add = calls.append
    parts = PartList(
        [
            StartAndStop(partial(add, "a+"), partial(add, "a-")),
            StartAndStop(partial(fail, calls, "b+"), partial(add, "b-")),
            StartAndStop(stop=partial(add, "open-")),
            StartAndStop(partial(add, "c+"), partial(add, "c-")),
        ]
    )
    with pytest.raises(RuntimeError, match=r"b\+"):
        parts.start()
    parts.stop()
    assert calls == ["a+", "b+", "open-", "a-"]


def test_what_is_open_from_the_beginning_is_stopped_without_a_start() -> None:
    calls: list[str] = []
    PartList([StartAndStop(stop=partial(calls.append, "open-")), StartAndStop(partial(calls.append, "a+"))]).stop()
    assert calls == ["open-"]


def test_a_part_that_fails_to_stop_leaves_no_other_running() -> None:
    calls: list[str] = []
    add = calls.append
    parts = PartList(
        [
            StartAndStop(stop=partial(add, "a-")),
            StartAndStop(stop=partial(fail, calls, "b-")),
            StartAndStop(stop=partial(add, "c-")),
        ]
    )
    with pytest.raises(RuntimeError, match="b-"):
        parts.stop()
    assert calls == ["c-", "b-", "a-"]
