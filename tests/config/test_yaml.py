"""Invalid YAML is reported in one line."""

from __future__ import annotations

import pytest

from trackside_daemon.config.yaml import YamlError, parse


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{ada: 2024-99-99}", "no valid timestamp"),
        ("ada: !!int x", "no valid int"),
        (f"ada: {'9' * 5000}", "no valid int"),
        ("[" * 3000, "nested too deeply"),
        ("{ada: *hunter2}", "an undefined alias"),
        ("ada: !hunter2 x", "an unknown tag"),
        ("{a: 1, a: 2}", "a is a duplicate key"),
        ("a: [", "not YAML: line "),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_no_value_with_it(text: str, says: str) -> None:
    with pytest.raises(YamlError) as raised:
        parse(text.encode())
    said = str(raised.value)
    assert says in said
    assert "\n" not in said
    assert "hunter2" not in said


def test_words_that_yaml_once_took_for_truth_are_words() -> None:
    assert parse(b"{a: on, b: no, c: true}") == {"a": "on", "b": "no", "c": True}
