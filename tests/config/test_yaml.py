"""Invalid YAML is reported in one line."""

from __future__ import annotations

import pytest

from trackside_daemon.config.yaml import YamlError, parse


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_an_error_is_reported_in_one_line_and_no_value_with_it(text: str, message: str) -> None:
    with pytest.raises(YamlError) as raised:
        parse(text.encode())
    reported = str(raised.value)
    assert message in reported
    assert "\n" not in reported
    assert "hunter2" not in reported


def test_words_that_yaml_once_took_for_truth_are_words() -> None:
    assert parse(b"{a: on, b: no, c: true}") == {"a": "on", "b": "no", "c": True}
