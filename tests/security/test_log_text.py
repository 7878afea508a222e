"""A name cannot disguise a line of the log by characters that nobody sees."""

from __future__ import annotations

import json
import logging

import pytest

from trackside_daemon.service import logging as log

# Right-to-left override and isolate, zero width space, line separator, a C1 control character, a tag letter.
INVISIBLE = ["\u202e", "\u2067", "\u200b", "\u2028", "\x9b", "\U000e0041"]
TRACKSIDE = logging.getLogger("trackside")
pytestmark = pytest.mark.usefixtures("restored_log")


@pytest.mark.parametrize("sign", INVISIBLE)
@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_what_is_invisible_is_escaped(capsys: pytest.CaptureFixture[str], style: str, sign: str) -> None:
    log.set_up("info", style)
    TRACKSIDE.info("run a%sgröße ended", sign)
    line = capsys.readouterr().err.removesuffix("\n")
    assert line.isprintable()
    text = line if style == "json" else line.partition("msg=")[2]
    read = json.loads(text)
    assert (read["msg"] if style == "json" else read) == f"run a{sign}größe ended"
    assert "größe" in line
