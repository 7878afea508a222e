"""The log: one line an event, in two formats."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from trackside_daemon.service import logging as log

TRACKSIDE = logging.getLogger("trackside")
pytestmark = pytest.mark.usefixtures("restored_log")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', r'"say \"x\""'),
        ("two\nlines", r'"two\nlines"'),
        ("\x1b[31mred\x07", r'"\u001b[31mred\u0007"'),
        ("tab\there", r'"tab\there"'),
        ("", '""'),
        ("größer", "größer"),
    ],
)
def test_logfmt_is_one_line_however_odd_the_message(
    capsys: pytest.CaptureFixture[str], message: str, written: str
) -> None:
    log.set_up("info", "logfmt")
    TRACKSIDE.info("%s", message)
    (line,) = lines(capsys)
    found = re.fullmatch(r"time=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) level=info msg=(.*)", line)
    assert found is not None
    assert found[2] == written


@pytest.mark.parametrize("message", ["plain", 'say "x" = y', "two\nlines", "größer", "\x00"])
def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    log.set_up("info", "json")
    TRACKSIDE.warning("%s", message)
    (line,) = lines(capsys)
    entry: dict[str, Any] = json.loads(line)
    assert (set(entry), entry["level"], entry["msg"]) == ({"time", "level", "msg"}, "warning", message)


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_an_exception_is_in_the_same_line(capsys: pytest.CaptureFixture[str], style: str) -> None:
    log.set_up("info", style)
    try:
        json.loads("")
    except ValueError:
        TRACKSIDE.exception("it failed")
    (line,) = lines(capsys)
    assert "Traceback" in line
    assert "JSONDecodeError: Expecting value" in line


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "dDiwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")],
)
def test_what_is_below_the_level_is_not_logged(capsys: pytest.CaptureFixture[str], level: str, shown: str) -> None:
    log.set_up(level, "logfmt")
    for name in ("debug", "info", "warning", "error"):
        getattr(TRACKSIDE, name)(name)
    assert [line.split()[1] for line in lines(capsys)] == [
        f"level={name}" for name in ("debug", "info", "warning", "error") if name[0] in shown
    ]


def test_it_may_be_set_up_again_without_doubling_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for style in ("logfmt", "json", "logfmt"):
        log.set_up("info", style)
    TRACKSIDE.info("once")
    assert len(lines(capsys)) == 1


def test_libraries_log_in_the_same_format_and_only_errors(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("debug", "logfmt")
    library = logging.getLogger("some.library")
    library.warning("chatter")
    library.error("trouble")
    (line,) = lines(capsys)
    assert line.endswith("level=error msg=trouble")
