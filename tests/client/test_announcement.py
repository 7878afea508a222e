"""The line on a terminal that names a run and links to its page."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import trackside
from trackside.transport import announcement
from trackside.transport.announcement import announce, link_of, short_name
from trackside.wire import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.router import Router

RUN = Identity("a1b2c3d47f3a", "train")
TOKEN = "t" * 32


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make standard error a terminal, and return a function that returns what was written there."""
    reading, writing = os.openpty()
    with os.fdopen(writing, "w") as stream:
        # Not sys.stderr itself, which pytest sets anew before the test.
        monkeypatch.setattr(announcement, "sys", SimpleNamespace(stderr=stream))

        def read() -> str:
            os.write(writing, b"\0")
            text = b""
            while not text.endswith(b"\0"):
                text += os.read(reading, 4096)
            return text[:-1].decode().replace("\r\n", "\n")

        yield read
    os.close(reading)


def serve(place: Path, address: str = "http://0.0.0.0:21790", token: str = TOKEN) -> str:
    """Write the files of a daemon, and return its push endpoint."""
    (place / "push.address").write_text(f"{address}\n")
    (place / "push.token").write_text(f"{token}\n")
    return f"ipc://{place}/push.sock"


LINK = f"http://127.0.0.1:21790/runs/a1b2c3d47f3a#token={TOKEN}"


def test_a_terminal_shows_the_name_and_the_link(place: Path, written: Callable[[], str]) -> None:
    announce(RUN, serve(place), {})
    assert written() == f"trackside: train-7f3a {LINK}\n"


@pytest.mark.parametrize("value", ["0", "off", "false"])
def test_a_variable_turns_it_off(place: Path, written: Callable[[], str], value: str) -> None:
    announce(RUN, serve(place), {"TRACKSIDE_PRINT_LINK": value})
    assert written() == ""


def test_other_ranks_and_what_is_no_terminal_get_nothing(
    place: Path, written: Callable[[], str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(Identity("r", "train", rank=1), serve(place), {})
    assert written() == ""
    monkeypatch.setattr(announcement, "sys", sys)
    announce(RUN, serve(place), {})
    monkeypatch.setattr(announcement, "sys", SimpleNamespace(stderr=None))
    announce(RUN, serve(place), {})
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("address", ["", "javascript:alert(1)", "http://h:1/\x1b[2J", "http://u@h:1", "http://h:1 x"])
def test_a_file_that_no_daemon_wrote_is_no_link(place: Path, address: str) -> None:
    assert link_of("r", serve(place, address)) == ""
    assert link_of("r", serve(place, token="\x1b[2J")) == ""
    assert link_of("r", "tcp://127.0.0.1:1") == link_of("r", f"ipc://{place}/none/push.sock") == ""


def test_a_name_cannot_steer_the_terminal() -> None:
    assert short_name(Identity("slurm-4711.0", "\x1b[2Jevil")) == "?[2Jevil-7110"


def test_the_line_appears_once_a_run(place: Path, router: Router, written: Callable[[], str]) -> None:
    serve(place)
    run = trackside.init("train", id="a1b2c3d47f3a", endpoint=router.endpoint)
    router.welcome()
    run.push(step=0, loss=1.0)
    router.answer(router.expect("batch"), "hello?")
    router.welcome(1)
    assert written() == f"trackside: train-7f3a {LINK}\n"
