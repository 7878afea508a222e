"""Find out when a client's messages were sent, by this machine's clock, though any clock is set meanwhile."""

from msgspec.structs import replace

from trackside.wire import Clock, Hello
from trackside_daemon.training.moment import Moment

SAME_SECONDS = 60.0  # a hello of a process with this machine's monotonic clock is no older
SET_SECONDS = 1.0  # a clock that moves by more was set, or its machine slept; less is noise between two readings
NOISE_SECONDS = 0.1  # differences up to this do not move the times of a session
DRIFT = 1e-3  # seconds per second by which two monotonic clocks may drift apart


class ClientClock:
    """The monotonic clock of a session, by which its rows have their times.

    Nobody sets a monotonic clock, so that its readings have no jumps, unlike those of both wall clocks. On this machine it is
    the daemon's own. The clock of another machine is as far behind as the message that arrived fastest shows. A session that
    is late has left its messages on a disk, so that those of another machine, or another boot, have only their wall time.

    Args:
        clock: The clocks of its hello.
        now: When that arrived.
        same_boot: The process runs in this boot of this machine, so that both clocks are the same.
        late: The hello was stored before it arrived.

    Attributes:
        shift: Nanoseconds from its monotonic clock to Unix time, as of its last message.
    """

    def __init__(self, clock: Clock, now: Moment, *, same_boot: bool, late: bool) -> None:
        behind = now.monotonic - clock.monotonic / 1e9
        self._wall = clock.wall - clock.monotonic
        # In a time namespace it has another clock all the same. An old hello is from before the daemon was stopped for a while.
        is_recent = behind < SAME_SECONDS or self._differs_by_sleep(now.wall - now.monotonic - self._wall / 1e9, now)
        self._same = same_boot and behind >= 0.0 and (late or is_recent)
        self._behind = None if late and not self._same else 0.0 if self._same else behind
        self._received_at = now.monotonic
        self.shift = self._shift(clock, now)

    @property
    def is_same(self) -> bool:
        """True if the process has this machine's clocks."""
        return self._same

    def receive(self, clock: Clock, now: Moment) -> Clock:
        """Apply a message that arrived *now*; return its clocks, with the wall time by this machine's clock."""
        wall = clock.wall - clock.monotonic
        if self._behind is not None and not self._same:
            behind = now.monotonic - clock.monotonic / 1e9
            drifted = self._behind + DRIFT * (now.monotonic - self._received_at)
            was_set = abs(wall - self._wall) > SET_SECONDS * 1e9  # or the client's machine slept
            self._behind = behind if was_set else min(behind, drifted)
        self._wall, self._received_at = wall, now.monotonic
        shift = self._shift(clock, now)
        if abs(shift - self.shift) > NOISE_SECONDS * 1e9:
            self.shift = shift
        return self.corrected(clock)

    def corrected(self, clock: Clock) -> Clock:
        """Return clocks of the session with the wall time by this machine's clock."""
        return Clock(clock.monotonic + self.shift, clock.monotonic)

    def corrected_hello(self, hello: Hello) -> Hello:
        """Return a hello of the session with its times by this machine's clock."""
        started = hello.started + round(self.offset(hello.clock) * 1e9)
        return replace(hello, clock=self.corrected(hello.clock), started=started)

    def offset(self, clock: Clock) -> float:
        """Return by how many seconds this machine's clock is ahead of the client's."""
        return (clock.monotonic + self.shift - clock.wall) / 1e9

    def age(self, clock: Clock, now: Moment) -> float:
        """Return how many seconds ago a message was sent."""
        if self._behind is None:
            return now.wall - (clock.monotonic + self.shift) / 1e9
        return now.monotonic - clock.monotonic / 1e9 - self._behind

    def _shift(self, clock: Clock, now: Moment) -> int:
        """Return the shift that a message shows."""
        own = clock.wall - clock.monotonic
        if self._behind is None:
            return min(own, round(now.wall * 1e9) - clock.monotonic)  # nothing arrives before it is sent
        shift = round((now.wall - now.monotonic + self._behind) * 1e9)
        return own if self._same and self._differs_by_sleep((shift - own) / 1e9, now) else shift

    @staticmethod
    def _differs_by_sleep(seconds: float, now: Moment) -> bool:
        """Return whether a clock that is so far behind is right, but for the sleep of this machine since it was read."""
        return -SET_SECONDS <= seconds <= SET_SECONDS + now.asleep
