"""Images of one user do not keep the history from the others."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
from histories import opened
from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.media import pixels
from trackside.wire import MediaItem
from trackside_daemon.history.media.index import read
from trackside_daemon.history.media.store import BATCH_ITEMS, MediaStore
from trackside_daemon.ingest.client_session import MEDIA_WAITING

if TYPE_CHECKING:
    from pathlib import Path

SESSION = opened("run").session


def images(count: int, data: bytes) -> list[MediaItem]:
    return [MediaItem("image", f"k{number}", 1_000_000_000, data, number) for number in range(count)]


def test_no_image_is_unpacked_by_the_thread_that_serves_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = pixels.encode(4096, 1024, 4, bytes(4096 * 1024 * 4))
    monkeypatch.setattr(zlib, "decompressobj", lambda *_: pytest.fail("it was unpacked"))
    MediaStore(tmp_path).write(SESSION, 1, images(1, bomb), 0)
    assert [one.width for one in read(tmp_path, "run")] == [4096]


def test_a_batch_has_a_bounded_number_of_items(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    store.write(SESSION, 1, images(BATCH_ITEMS + 3, pixels.encode(1, 1, 1, b"x")), 0)
    assert (len(read(tmp_path, "run")), store.refused) == (BATCH_ITEMS, 3)


def test_an_owner_with_images_that_wait_for_the_history_sends_more_of_them_later() -> None:
    desk = SessionsHarness()
    speaker, other = FakeSession("run-1"), FakeSession("run-2")  # of the same user
    for one in (speaker, other):
        desk.greet(one)

    def push(session: FakeSession, number: int, count: int) -> None:
        body = replace(session.pushes({"loss": 1.0}), media=images(count, b"x"))
        desk.receive(*session.frames("batch", body, number))

    push(speaker, 1, MEDIA_WAITING + 1)
    push(speaker, 2, 1)
    push(other, 1, 1)
    assert len(desk.receipts) == 1
    push(other, 1, 0)  # samples go on
    assert len(desk.receipts) == 2
    desk.commit()
    push(speaker, 2, 1)
    assert [receipt.number for receipt in desk.receipts] == [2]
