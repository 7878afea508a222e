"""The options of captures, which all ways to ask for one check in one place."""

from __future__ import annotations

from typing import Any

import pytest

from trackside_daemon.model.capture import KINDS, PROFILE, CaptureBody, KindName, OptionError, ProfileOptions


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("profile", {"seconds": 100_000.0}, "--seconds: 120 at most"),
        ("profile", {"seconds": 0.0}, "--seconds: 0.01 at least"),
        ("profile", {"seconds": float("nan")}, "--seconds: 120 at most"),
        ("profile", {"steps": 1001}, "--steps: 1000 at most"),
        ("profile", {"steps": 0}, "--steps: 1 at least"),
        ("profile", {"steps": 5, "seconds": 1.0}, "--steps, --seconds: give one of them"),
        ("layers", {"steps": 1001}, "--steps: 1000 at most"),
        ("layers", {"seconds": 1.0}, "--seconds: a capture of kind layers has none"),
        ("memory", {"steps": 5}, "--steps: a capture of kind memory has none"),
        ("stacks", {"stacks": True}, "--stacks: a capture of kind stacks has none"),
        ("flight_recorder", {"shapes": True}, "--shapes: a capture of kind flight_recorder has none"),
    ],
)
def test_an_option_that_a_kind_lacks_is_refused_in_one_line(
    kind: KindName, given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OptionError) as refused:
        CaptureBody(kind, **given).options()
    assert refused.value.text("--") == expected
    assert str(refused.value) == expected.replace("--", "")


def test_what_is_not_given_is_as_usual() -> None:
    assert {kind: CaptureBody(kind).options().steps for kind in KINDS} == {**dict.fromkeys(KINDS, 10), "layers": 100}
    assert CaptureBody().options() == PROFILE
    assert CaptureBody(seconds=120.0, stacks=True).options() == ProfileOptions(None, 120.0, stacks=True)
    assert CaptureBody("layers", steps=1000).options() == ProfileOptions(1000)
