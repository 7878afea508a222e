"""Regular expressions that are compiled at their first use: those of the client take 8 ms, and most trainings use none."""

import re
from typing import Any, cast


class _Pattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._pattern, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern with the methods and attributes of `re.compile`'s."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
