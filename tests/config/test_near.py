"""Tests of the errors about a wrong value or name."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from trackside_daemon.config.near import explain, near_name


class _Sample(BaseModel):
    interval: float
    name: str

    @field_validator("name")
    @classmethod
    def _has_letters(cls, name: str) -> str:
        if not name:
            raise ValueError("Give it a name")
        return name


def test_the_nearest_name_is_proposed_whatever_its_case() -> None:
    assert near_name("nonfinte", ["LossSpike", "NonFinite"]) == "; did you mean NonFinite?"


def test_without_a_near_name_the_way_out_is_given() -> None:
    assert near_name("zzz", ["LossSpike"], "docs/alerts.md lists them") == "; docs/alerts.md lists them"
    assert near_name("zzz", ["LossSpike"]) == ""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"interval": "soon", "name": "a"},
            "input should be a valid number, unable to parse string as a number, got 'soon'",
        ),
        ({"interval": 1, "name": ""}, "Give it a name"),
        ({"name": "a"}, "field required"),
    ],
)
def test_a_refused_value_is_explained_in_one_line(given: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        _Sample.model_validate(given)
    assert explain(raised.value.errors()[0]) == text


def test_a_secret_value_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as raised:
        _Sample.model_validate({"interval": "password", "name": "a"})
    assert "password" not in explain(raised.value.errors()[0], secret=True)
