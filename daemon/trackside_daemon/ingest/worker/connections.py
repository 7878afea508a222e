"""The connections of the clients, and which of them go when there are too many."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

SO_PEERPIDFD = 77  # the option of socket(7), since Linux 6.5; Python's socket module lacks it

NO_UID = 2**32 - 1

_HAS_CREDENTIALS = hasattr(socket, "SO_PEERCRED")  # Linux alone

_CREDENTIALS = struct.Struct("iII")  # pid, uid and gid of struct ucred (unix(7))


class _Place(NamedTuple):
    """The group of a connection: its peer, and whether it has sent a message."""

    peer: str
    speaks: bool


class Connections:
    """The open connections, at most *most*: with more, one of the peer that has most is shut down.

    A peer is a user of this machine or an address. Of its connections the oldest goes that has never sent a message, else the
    one that has been silent for longest: a process that opens many therefore closes its own.

    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: dict[int, _Place] = {}
        self._groups: dict[_Place, dict[int, None]] = {}  # descriptors, the one that has been silent for longest first

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._places)

    def __contains__(self, descriptor: int) -> bool:
        """Return whether the connection with this descriptor is open."""
        return descriptor in self._places

    @property
    def has_several_peers(self) -> bool:
        """True if not all are of one peer."""
        return len({place.peer for place in self._groups}) > 1

    def accepted(self, descriptor: int) -> bool:
        """Note a connection by ZeroMQ's descriptor; return whether there were too many, so that one is shut down."""
        self.closed(descriptor)
        self._put(descriptor, _Place(_peer(descriptor), speaks=False))
        if len(self._places) <= self.most:
            return False
        self._evict(descriptor)
        return True

    def spoke(self, descriptor: int) -> None:
        """Note a message."""
        place = self._places.get(descriptor)
        if place is not None:
            self.closed(descriptor)
            self._put(descriptor, place._replace(speaks=True))

    def closed(self, descriptor: int) -> None:
        """Note the end of a connection."""
        place = self._places.pop(descriptor, None)
        if place is not None:
            del self._groups[place][descriptor]
            if not self._groups[place]:
                del self._groups[place]

    def shed(self, *, also_silent: bool) -> int:
        """Shut down those that have sent no message, if asked also the half that is silent for longest; return how many."""
        going = [one for one, place in self._places.items() if not place.speaks]
        if also_silent:
            going += [one for one, place in self._places.items() if place.speaks][: (len(self._places) + 1) // 2]
        for descriptor in going:
            self._shut_down(descriptor)
        return len(going)

    def _put(self, descriptor: int, place: _Place) -> None:
        self._places[descriptor] = place
        self._groups.setdefault(place, {})[descriptor] = None

    def _evict(self, newest: int) -> None:
        totals: dict[str, int] = {}
        for place, group in self._groups.items():
            totals[place.peer] = totals.get(place.peer, 0) + len(group)
        peer = max(totals, key=totals.__getitem__)
        # The newest has had no time to send anything.
        groups = (self._groups.get(_Place(peer, speaks), {}) for speaks in (False, True))
        self._shut_down(next((one for group in groups for one in group if one != newest), newest))

    def _shut_down(self, descriptor: int) -> None:
        self.closed(descriptor)
        # ZeroMQ then reads the end of the stream. Should the descriptor belong to a newer connection by now, that one goes.
        with suppress(OSError), _borrowed(descriptor) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def pidfd(descriptor: int, pid: int) -> int:
    """Return a pidfd of the process at the other end of a Unix socket, if its pid is *pid*; -1 otherwise.

    Args:
        descriptor: The socket, which belongs to ZeroMQ: its number may belong to another connection by now.
        pid: The pid, as ZeroMQ found it when the connection was made.
    """
    # SO_PEERCRED reports pid 0 for a process that this pid namespace does not show.
    if descriptor < 0 or pid <= 0 or not _HAS_CREDENTIALS:
        return -1
    try:
        copy = os.dup(descriptor)  # ZeroMQ may close its own between the calls below
    except OSError:
        return -1
    try:
        with _borrowed(copy) as connection:
            if _credentials(connection)[0] != pid:
                return -1
            try:
                # Unlike a pid, it cannot belong to a process that has reused the number.
                return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
            except OSError:  # before Linux 6.5
                return os.pidfd_open(pid)
    except OSError:
        return -1
    finally:
        os.close(copy)


def _peer(descriptor: int) -> str:
    """Return the uid or the address at the other end; empty if that is unknown."""
    try:
        with _borrowed(descriptor) as connection:
            uid = _credentials(connection)[1] if _HAS_CREDENTIALS else NO_UID
            return str(uid) if uid != NO_UID else str(connection.getpeername()[0])
    except (OSError, IndexError):  # closed already; or a Unix socket outside Linux, whose address is empty
        return ""


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the other end of a Unix socket (SO_PEERCRED, unix(7)); uid `NO_UID` for TCP."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor, which stays open."""
    # With a family, for which Python would otherwise ask the kernel; it matters for none of the calls here.
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
    try:
        yield connection
    finally:
        connection.detach()
