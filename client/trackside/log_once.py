"""The last log line about each subject, so that it is written once, and further ones are only counted."""

from math import inf


class LogOnce(dict[object, str]):
    """The last text about each subject; one that is removed is logged again.

    Args:
        most: Subjects that are logged.
    """

    def __init__(self, most: float = inf) -> None:
        self._most = most

    def first(self, subject: object = "", text: str = "") -> bool:
        """Return whether to log a text about a subject, since it is a new one, and remember it."""
        if self.get(subject) == text or (len(self) >= self._most and subject not in self):
            return False
        self[subject] = text
        return True
