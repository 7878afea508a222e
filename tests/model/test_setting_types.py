"""Types of settings: the values that they accept."""

from __future__ import annotations

from trackside_daemon.model.setting_types import text


def test_a_text_may_be_a_number_and_nothing_else() -> None:
    assert (text(54321), text("ml")) == ("54321", "ml")
    others: list[object] = [True, 1.5, None, ["ml"]]
    assert [text(value) for value in others] == others
