"""The kernel's table of mounts, in which every user with permission to mount chooses names."""

from __future__ import annotations

import os

import pytest

from trackside_daemon.linux.mountinfo import MountLine, parse

LINE = b"36 35 98:0 /a /mnt2 rw,noatime shared:1 - ext3 /dev/root rw,errors=continue\n"


def test_a_line_is_read_in_full() -> None:
    options, more = ("rw", "noatime"), ("rw", "errors=continue")
    assert parse(LINE) == [MountLine(36, 35, "98:0", "/a", "/mnt2", options, "ext3", more)]


@pytest.mark.parametrize("name", ["a\rb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "a\r\x0b"])
def test_only_a_newline_ends_a_line(name: str) -> None:
    before = b"37 35 98:1 / /mnt/" + name.encode() + b" rw - ext3 " + name.encode() + b" rw\n"
    assert [one.point for one in parse(before + LINE)] == [f"/mnt/{name}", "/mnt2"]


def test_a_line_that_is_none_costs_only_itself() -> None:
    assert [one.number for one in parse(b"\n36\nx 35 98:0 / / rw - a b rw\n" + LINE + b"37 35 - ext3\n")] == [36]


def test_octal_escapes_of_the_kernel_and_names_that_are_no_utf8_are_retained() -> None:
    [line] = parse(LINE.replace(b"/mnt2", rb"/a\040b\011c\012d\134e\043f" + b"\xe9"))
    assert os.fsencode(line.point) == b"/a b\tc\nd\\e#f\xe9"
