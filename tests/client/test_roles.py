"""Roles that a training states for its keys: what is used, the warning about the rest, and how they are sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from client.messages import CLOCK, a_session

from trackside.roles import LONGEST, STATED, stated, usable
from trackside.transport.session import Session
from trackside.wire import decode_body


class Broken(Mapping[str, str]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> str:
        raise RuntimeError("broken")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("broken")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("roles", [None, {}, {"loss": "objective", "*/score": "reward"}])
def test_roles_are_used_without_a_warning(roles: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert stated(roles) == (roles or {})
    assert not caplog.records


WRONG: list[tuple[Any, dict[str, str]]] = [
    ({"loss": "objectiv", "x": "loss"}, {"x": "loss"}),
    ({"loss": None, 7: "loss", "": "loss", "a" * (LONGEST + 1): "loss", "\ud800": "loss"}, {}),
    ({"loss": ["objective"]}, {}),
    ("objective", {}),
    (["loss"], {}),
    (Broken(), {}),
    ({str(number): "loss" for number in range(1000)}, {str(number): "loss" for number in range(STATED)}),
]


@pytest.mark.parametrize(("roles", "used"), WRONG)
def test_what_is_no_role_is_left_out_with_one_warning(
    roles: Any, used: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trackside"):
        assert stated(roles) == used
    [record] = caplog.records
    assert "left out" in record.getMessage()
    assert len(record.getMessage()) < 1000


@pytest.mark.parametrize("sent", [None, 7, "loss", ["loss"], {"loss": {}}, {"loss": "none"}])
def test_anything_may_be_sent(sent: Any) -> None:
    assert usable(sent) == {}


def test_a_session_and_its_successor_send_them() -> None:
    session = Session(a_session().identity, roles={"loss": "objective"})
    for one in (session, session.successor()):
        hello = decode_body("hello", one.hello(CLOCK)[2])
        assert hello.about.roles == {"loss": "objective"}
