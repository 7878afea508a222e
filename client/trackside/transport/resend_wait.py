"""The time for which a client waits for an answer before it sends again."""

from random import SystemRandom

ANSWER_SECONDS = 2.0  # the first wait
LONGEST_SECONDS = 10.0

# Each wait in vain is followed by one that is so many times longer. Chance keeps a thousand clients from sending all at once.
FACTORS = 1.5, 2.5

_chance = SystemRandom()  # not `random`, which a training seeds alike on all ranks


class ResendWait:
    """The wait for an answer. It grows while none helps, so that clients of an overloaded daemon do not overload it more.

    Args:
        first: The first wait, in seconds.

    Attributes:
        seconds: Time without progress after which a session resends, and without any answer after which the daemon is
            searched anew.
    """

    def __init__(self, first: float = ANSWER_SECONDS) -> None:
        self.seconds = self._first = first

    def reset(self) -> None:
        """Begin anew: a message was acknowledged, or there is no daemon that could be overloaded."""
        self.seconds = self._first

    def grow(self) -> None:
        """Note a wait in vain."""
        self.seconds = min(LONGEST_SECONDS, self.seconds * _chance.uniform(*FACTORS))
