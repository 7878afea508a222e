"""A name cannot disguise a line of the log by invisible characters."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
from alerts.sinks.alert_records import alert, over

from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
from trackside_daemon.alerts.sinks.log.sink import LogSink
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


def test_the_title_of_a_training_comes_after_its_run() -> None:
    one = alert("UserAlert", severity="warning", summary="NonFinite (critical): the loss of run other is NaN")
    box = LogSink(LogSinkSection.model_validate({"severity": "info"})).outbox()
    for reported in (one, dataclasses.replace(one, severity="critical"), over(one)):
        box.put(reported, 0.0)
    message = box.next_message(0.0)
    assert message is not None
    begins = ("UserAlert (warning)", "UserAlert (now critical)", "UserAlert ended after 2 min 30 s")
    assert message.lines == tuple(f"{begin}: run name-id: {one.summary}" for begin in begins)
