"""Log lines that are written once per subject."""

from __future__ import annotations

from trackside.log_once import LogOnce
from trackside.os_errors import file_error_text, os_error_text


def test_a_subject_is_logged_once_until_its_text_changes_or_it_is_removed() -> None:
    logged = LogOnce()
    assert [logged.first("disk", text) for text in ("full", "full", "damaged")] == [True, False, True]
    del logged["disk"]
    assert logged.first("disk", "damaged")


def test_so_many_subjects_are_logged_and_no_more() -> None:
    logged = LogOnce(1)
    assert [logged.first(subject) for subject in ("a", "b", "a")] == [True, False, False]
    assert logged.first("a", "another text")


def test_an_error_of_the_system_is_its_message_in_lower_case_with_the_file_if_it_has_one() -> None:
    error = OSError(28, "No space left on device", "/x/y")
    assert os_error_text(error) == "no space left on device"
    assert file_error_text(error) == "/x/y: no space left on device"
    assert file_error_text(OSError("Broken")) == os_error_text(ValueError("broken"))
