"""The event stream: one frame for all listeners, no queue for slow ones, an end for everybody."""

from __future__ import annotations

import asyncio
import json
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from processes import DEADLINE
from session_records import batch_ingested, session_opened
from wire_messages import WALL, FakeSession, pushed

from trackside_daemon.web.api.overview.handlers import (
    COMMENT,
    SEND_TIMEOUT,
    Listener,
    ListenersFullError,
    OverviewFrame,
    OverviewStream,
    format_event,
)
from trackside_daemon.web.http.server import ABORT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from conftest import Site  # type: ignore[attr-defined]
    from starlette.types import Message
    from wire_messages import RunsHarness


class Maker:
    """Makes numbered frames and counts them."""

    def __init__(self) -> None:
        self.made = 0
        self.wanted: list[set[str]] = []

    def __call__(self, wanted: Collection[str]) -> OverviewFrame:
        self.made += 1
        self.wanted.append(set(wanted))
        return OverviewFrame(
            format_event("overview", b"%d" % self.made), {run: format_event("run", run.encode()) for run in wanted}
        )


QUICK = 0.02  # seconds between two frames


async def next_events(listener: Listener) -> list[bytes]:
    """Return the listener's next events, without comments."""
    found = await asyncio.wait_for(listener.next(), DEADLINE)
    assert found is not None
    return [one.replace(COMMENT, b"") for one in found]


async def nothing_runs() -> None:
    """Wait until no other task is left: a stream without listeners makes nothing."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, left = await asyncio.wait(others, timeout=DEADLINE)
        assert not left


def test_all_get_the_same_bytes_that_were_made_once() -> None:
    maker = Maker()
    stream = OverviewStream(maker, period=QUICK)

    async def listen() -> None:
        listeners = [stream.subscribe() for _ in range(50)]
        for _ in range(5):
            frames = await asyncio.wait_for(asyncio.gather(*(one.next() for one in listeners)), DEADLINE)
            first = frames[0]
            assert first is not None
            assert all(frame is not None and frame[0] is first[0] for frame in frames)
        assert maker.made < len(listeners)
        for one in listeners:
            stream.unsubscribe(one)

    asyncio.run(listen())


def test_nothing_is_made_without_a_listener() -> None:
    maker = Maker()
    stream = OverviewStream(maker, period=QUICK)

    async def listen() -> None:
        assert maker.made == 0
        listener = stream.subscribe()
        await next_events(listener)
        stream.unsubscribe(listener)
        await nothing_runs()
        again = stream.subscribe()
        made = maker.made
        while maker.made == made:
            await next_events(again)
        stream.unsubscribe(again)

    asyncio.run(listen())


def test_a_listener_that_comes_between_two_gets_the_last_at_once_and_none_is_made_for_it() -> None:
    maker = Maker()
    stream = OverviewStream(maker, period=3600.0)

    async def listen() -> None:
        first = await next_events(one := stream.subscribe())
        stream.unsubscribe(one)
        for _ in range(20):
            another = stream.subscribe()
            assert await next_events(another) == first
            stream.unsubscribe(another)
        assert maker.made == 1

    asyncio.run(listen())


def test_a_slow_listener_gets_the_newest_and_nothing_waits_for_it() -> None:
    maker = Maker()
    stream = OverviewStream(maker, period=QUICK)

    async def listen() -> None:
        slow, fast = stream.subscribe(), stream.subscribe()
        for _ in range(10):
            newest = await next_events(fast)
        assert await next_events(slow) == newest
        assert await next_events(slow) != newest

    asyncio.run(listen())


def test_a_listener_to_a_run_gets_it_besides_and_others_do_not() -> None:
    maker = Maker()
    stream = OverviewStream(maker, period=QUICK)

    async def listen() -> None:
        one, two, none = stream.subscribe("a"), stream.subscribe("b"), stream.subscribe()
        assert [(await next_events(session))[1:] for session in (one, two, none)] == [
            [format_event("run", b"a")],
            [format_event("run", b"b")],
            [],
        ]
        stream.unsubscribe(two)
        made = maker.made
        while maker.made <= made + 1:
            await next_events(one)
        assert maker.wanted[-1] == {"a"}

    asyncio.run(listen())


def test_more_than_may_listen_do_not() -> None:
    stream = OverviewStream(Maker(), period=QUICK, most=2)

    async def listen() -> None:
        first = stream.subscribe()
        stream.subscribe()
        with pytest.raises(ListenersFullError):
            stream.subscribe()
        stream.unsubscribe(first)
        await next_events(stream.subscribe())

    asyncio.run(listen())


def test_a_comment_comes_now_and_then() -> None:
    stream = OverviewStream(Maker(), period=QUICK, keep_alive=3 * QUICK)

    async def listen() -> None:
        listener = stream.subscribe()
        comments = 0
        while comments < 3:
            (one,) = await asyncio.wait_for(listener.next(), DEADLINE) or []
            comments += one.endswith(COMMENT)

    asyncio.run(listen())


def test_what_cannot_be_made_is_logged_once_and_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    failing = threading.Event()
    maker = Maker()

    def make(wanted: Collection[str]) -> OverviewFrame:
        if failing.is_set():
            maker.made += 1
            raise RuntimeError("broken")
        return maker(wanted)

    async def listen() -> None:
        listener = OverviewStream(make, period=QUICK).subscribe()
        await next_events(listener)
        failing.set()
        made = maker.made
        while maker.made < made + 3:
            assert not b"".join(await next_events(listener)).startswith(b"event")
        failing.clear()
        while not await next_events(listener):
            pass

    asyncio.run(listen())
    assert len([one for one in caplog.messages if one.startswith("the overview cannot be produced")]) == 1


def test_at_the_end_all_are_notified_and_no_listener_may_begin() -> None:
    stream = OverviewStream(Maker(), period=QUICK)

    async def listen() -> None:
        listener = stream.subscribe()
        await next_events(listener)
        await asyncio.to_thread(stream.stop)
        while await asyncio.wait_for(listener.next(), DEADLINE) is not None:
            pass
        with pytest.raises(ListenersFullError):
            stream.subscribe()

    asyncio.run(listen())


class Asked:
    """A request to the application as a server makes it, until the client disconnects."""

    def __init__(
        self,
        site: Site,
        path: str = "/api/v1/stream",
        query: str = "",
        *,
        more: Mapping[str, Any] = MappingProxyType({}),
        send_timeout: float = SEND_TIMEOUT,
    ) -> None:
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.left = asyncio.Event()
        headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {site.token.value}".encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "headers": headers,
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            **more,
        }
        app = site.client(send_timeout=send_timeout).transport.app
        self.task = asyncio.ensure_future(app(scope, self._receive, self.send))

    async def send(self, message: Message) -> None:
        await self.received.put(message)

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def receive(self) -> Message:
        return await asyncio.wait_for(self.received.get(), DEADLINE)

    async def end(self) -> None:
        await asyncio.wait_for(self.task, DEADLINE)


def test_a_client_that_goes_is_forgotten(site: Site) -> None:
    async def listen() -> None:
        asked = Asked(site)
        start, body = await asked.receive(), await asked.receive()
        assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, b"text/event-stream")
        assert body["body"].startswith(b"event: overview\ndata: {")
        asked.left.set()
        await asked.end()
        await nothing_runs()

    asyncio.run(listen())


class Stuck(Asked):
    """A client whose connection accepts no more data."""

    async def send(self, message: Message) -> None:
        await super().send(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()


@pytest.mark.parametrize(("patience", "stops"), [(0.05, False), (3600.0, True)])
def test_a_client_that_reads_nothing_is_cut_off_in_the_end(site: Site, patience: float, stops: bool) -> None:
    async def listen() -> None:
        cut = asyncio.Event()
        asked = Stuck(site, more={ABORT: cut.set}, send_timeout=patience)
        while (await asked.receive())["type"] != "http.response.body":
            pass
        if stops:
            site.pages.stop()
        await asyncio.wait_for(cut.wait(), DEADLINE)
        asked.left.set()
        await asked.end()
        await nothing_runs()

    asyncio.run(listen())


def test_a_run_s_events_have_the_newest_sample_of_each_key_and_rank(site: Site, house: RunsHarness) -> None:
    shift = round((WALL - 50.0) * 1e9)
    for rank in (0, 1):
        session = FakeSession("id-1", rank=rank, world=2)
        first = batch_ingested(session.id, 1, [pushed(["loss", "eval/f1"], (1.0, 1, (9.0, float("nan"))))], shift)
        more = batch_ingested(session.id, 2, [pushed(["loss"], (2.0, 2, (8.0,)), (3.0, 3, (7.0 + rank,)))], shift)
        site.keep(session_opened(session.id, session.hello(), "train", 0, WALL), first, more)

    async def listen() -> bytes:
        asked = Asked(site, query="run=train")
        while b"event: run\n" not in (answered := (await asked.receive()).get("body", b"")):
            pass
        asked.left.set()
        await asked.end()
        return bytes(answered)

    answered = json.loads(asyncio.run(listen()).split(b"data: ", 1)[1])
    assert answered["values"] == {
        "loss": {"0": [3, WALL + 3, 7.0], "1": [3, WALL + 3, 8.0]},
        "eval/f1": {"0": [1, WALL + 1, "nan"], "1": [1, WALL + 1, "nan"]},
    }
    assert (answered["id"], answered["step"]) == ("id-1", 3)


def test_an_unknown_run_is_reported(site: Site) -> None:
    answer = site.client().get("/api/v1/stream?run=nothing", headers=site.key)
    assert answer.status_code == 404


def test_a_client_without_permission_does_not_listen(site: Site) -> None:
    for path in ("overview", "stream"):
        assert site.client().get(f"/api/v1/{path}").status_code == 401
        assert site.client().get(f"/api/v1/{path}", headers={**site.key, "Host": "evil.example"}).status_code == 421
        assert site.client().get(f"/api/v1/{path}?token={site.token.value}").status_code == 401
        assert site.client().ask("POST", f"/api/v1/{path}", headers=site.key).status_code == 405
    assert site.overview.build_count == 0


def test_a_head_of_the_stream_ends(site: Site) -> None:
    head = site.client().ask("HEAD", "/api/v1/stream", headers=site.key)
    assert (head.status_code, head.headers["Content-Type"]) == (200, "text/event-stream")
    assert site.overview.build_count == 0


def test_one_too_many_gets_an_error_with_the_remedy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverviewStream, "subscribe", Mock(side_effect=ListenersFullError))
    answer = site.client().get("/api/v1/stream", headers=site.key)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["error"]["reason"] == "busy"
