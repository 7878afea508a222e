"""The users that get what is sent to an address of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.linux.socket_address import strangers

if TYPE_CHECKING:
    from pathlib import Path

OWN, OTHER = os.getuid(), 61202
V4 = {"127.0.0.1": "0100007F", "127.0.0.2": "0200007F", "0.0.0.0": "00000000"}
V6 = {"::": "0" * 32, "::ffff:127.0.0.1": "0000000000000000FFFF00000100007F"}


@pytest.mark.parametrize(
    ("listening", "host", "found"),
    [
        ({"127.0.0.1": OTHER}, "127.0.0.1", [OTHER]),
        ({"127.0.0.1": OTHER}, "0.0.0.0", [OTHER]),
        ({"127.0.0.1": OTHER}, "localhost", [OTHER]),
        ({"::ffff:127.0.0.1": OTHER}, "127.0.0.1", [OTHER]),
        ({"0.0.0.0": OTHER}, "127.0.0.1", [OTHER]),
        ({"::": OTHER}, "127.0.0.1", [OTHER]),
        ({"127.0.0.1": OWN, "127.0.0.2": OTHER}, "127.0.0.1", []),
        ({"0.0.0.0": OWN, "127.0.0.1": OTHER}, "127.0.0.1", [OTHER]),
        ({"127.0.0.1": OWN, "::": OTHER}, "127.0.0.1", []),
        ({"0.0.0.0": OWN, "::": OTHER}, "127.0.0.1", []),  # which then takes connections of IPv6 alone
        ({"0.0.0.0": OTHER}, "192.0.2.1", []),
    ],
)
def test_the_socket_that_a_connection_reaches_counts_and_no_other(
    tmp_path: Path, listening: dict[str, int], host: str, found: list[int]
) -> None:
    (tmp_path / "net").mkdir()
    for name, places in (("tcp", V4), ("tcp6", V6)):
        rest = "0 0A 0:0 0:0 0"
        rows = (f" 0: {places[one]}:5000 {rest} {uid} 0 77 1\n" for one, uid in listening.items() if one in places)
        (tmp_path / "net" / name).write_text("header\n" + "".join(rows))
    assert strangers(host, 0x5000, (), tmp_path) == found
