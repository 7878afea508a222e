"""The datagrams and the configurations of PyTorch's profiler."""

from __future__ import annotations

import struct

import pytest
from captures.kineto.datagrams import datagram, registration, request
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.captures.kineto.protocol import (
    DATAGRAM_BYTES,
    ConfigurationRequest,
    DatagramError,
    RecordingWindow,
    configuration,
    decode,
    encode,
)
from trackside_daemon.model.capture import ProfileOptions


def test_a_request_names_its_process_before_its_ancestors() -> None:
    assert decode(request(7, 5, 1)) == ConfigurationRequest(7, accepts=True)
    assert decode(request(7, 5, 1, accepts=False)) == ConfigurationRequest(7, accepts=False)


def test_a_registration_needs_no_answer() -> None:
    assert decode(registration(7)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\0" * 39,
        datagram(b"req", b""),
        datagram(b"boo", b"\0" * 16),
        datagram(b"ctxt", b"\0" * 15),
        datagram(b"req", struct.pack("<iiq", 2, 0, 0)),  # no process
        datagram(b"req", struct.pack("<iiqi", 2, 2, 0, 7)),  # one of two
        datagram(b"req", struct.pack("<iiqi", 2, -1, 0, 7)),
        datagram(b"req", struct.pack("<iiqi", 2, 1 << 30, 0, 7)),
        request(7)[:-1],
        request(7) + b"\0",
    ],
)
def test_what_is_no_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(DatagramError):
        decode(wrong)


@given(st.one_of(st.binary(max_size=DATAGRAM_BYTES), st.binary(max_size=64).map(lambda some: datagram(b"req", some))))
def test_no_bytes_fail_otherwise(some: bytes) -> None:
    try:
        found = decode(some)
    except DatagramError:
        return
    assert found is None or isinstance(found.pid, int)


def test_an_answer_has_the_form_of_a_message() -> None:
    assert encode("A=1\n") == datagram(b"req", b"A=1\n")


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=") for line in text.splitlines())


def test_steps_are_counted_and_times_are_in_milliseconds() -> None:
    steps = lines(configuration("/run/x.kineto/1/trace_0.json", RecordingWindow(steps=7), ProfileOptions()))
    assert steps == {
        "ACTIVITIES_LOG_FILE": "/run/x.kineto/1/trace_0.json",
        "ACTIVITIES_WARMUP_PERIOD_SECS": "0",
        "PROFILE_START_ITERATION": "0",
        "ACTIVITIES_ITERATIONS": "7",
    }
    timed = lines(configuration("/x.json", RecordingWindow(seconds=0.25, start=1234.5678), ProfileOptions(stacks=True)))
    assert (timed["PROFILE_START_TIME"], timed["ACTIVITIES_DURATION_MSECS"]) == ("1234568", "250")
    assert timed["PROFILE_WITH_STACK"] == "true"
    assert "PROFILE_REPORT_INPUT_SHAPES" not in timed
