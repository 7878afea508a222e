"""Short texts of values in the terminal dashboard."""

from __future__ import annotations

import pytest

from trackside_daemon.terminal.styled_lines import with_prefix


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [(999.4, 1000, "999"), (999.6, 1000, "1k"), (1023.7, 1024, "1K"), (12_345, 1000, "12.3k"), (None, 1000, "-")],
)
def test_a_number_with_a_prefix_has_three_digits(value: float | None, base: int, text: str) -> None:
    assert with_prefix(value, base) == text
