"""The time for which a client waits for an answer before it sends again."""

from random import SystemRandom

ANSWER_SECONDS = 2.0  # the first wait
LONGEST_SECONDS = 10.0

# The same before a connection that exists is given up, on which a busy daemon answers sooner than on another.
SILENT_SECONDS, LONGEST_SILENT_SECONDS = 30.0, 300.0

# Each wait in vain is followed by one that is so many times longer. Chance keeps a thousand clients from sending all at once.
FACTORS = 1.5, 2.5

_chance = SystemRandom()  # not `random`, which a training seeds alike on all ranks


class ResendWait:
    """The wait for an answer. It grows while none helps, so that clients of an overloaded daemon do not overload it more.

    Args:
        first: The first wait, in seconds.
        longest: The limit of a wait.

    Attributes:
        seconds: The wait now.
    """

    def __init__(self, first: float = ANSWER_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self.seconds = self._first = first
        self._longest = longest

    def reset(self, seconds: float = 0.0) -> None:
        """Begin anew, with *seconds* if that is longer: an answer came, or there is no daemon that could be overloaded."""
        self.seconds = max(self._first, min(seconds, self._longest))

    def grow(self) -> None:
        """Note a wait in vain."""
        self.seconds = max(self.seconds, min(self._longest, self.seconds * _chance.uniform(*FACTORS)))
