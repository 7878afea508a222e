"""Simulated ranks whose messages are made in advance: one process sends them, so that a thousand cost the machine little."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import zmq

from bench.feeder import KEYS
from bench.many_ranks import identity_of, value_rows
from trackside.transport.sender import now
from trackside.transport.session import Session
from trackside.wire import open_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.many_ranks import Job

SPREAD_SECONDS = 0.2  # in which all ranks connect: clients search for a daemon so often
SERVED_SECONDS = 60.0  # the longest wait for all acknowledgements


class PreparedRanks:
    """The ranks of a job, with the sessions of the real client and a socket each.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rows = [value_rows(rank, job) for rank in range(job.world)]
        self._sessions = [Session(identity_of(rank, job.world)) for rank in range(job.world)]
        self._hellos: list[list[bytes]] = []
        self._messages: list[list[tuple[int, list[bytes]]]] = []

    def prepare(self, steps: range, each: int, keys: Sequence[str] = KEYS) -> None:
        """Make the hellos, and the messages with some steps, *each* of so many, which `send` sends."""
        self._hellos = [session.hello(now()) for session in self._sessions]  # first: they have what is acknowledged
        self._messages = [[] for _ in self._sessions]
        for session, rows, messages in zip(self._sessions, self._rows, self._messages, strict=True):
            for first in steps[::each]:
                for step in range(first, min(first + each, steps.stop)):
                    values = rows[step, : len(keys)].tolist()
                    session.rows.append((time.monotonic_ns(), step, dict(zip(keys, values, strict=True))))
                session.drain(now(), everything=True)
                while (made := session.next_to_send()) is not None:
                    messages.append((made.number, made.frames))
                    session.sent(made)
                    session.acknowledged(made.number)

    def send(self, endpoint: str) -> list[float]:
        """Connect, greet and send; return, of each rank, the seconds until its first acknowledgement.

        It returns once all is acknowledged, or after `SERVED_SECONDS`; ranks without an acknowledgement are left out.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 2 * len(self._sessions))
        poller = zmq.Poller()
        to_connect = random.Random(1).sample(range(len(self._sessions)), len(self._sessions))
        ranks: dict[zmq.Socket[bytes], int] = {}
        first: dict[int, float] = {}
        left = set(to_connect)
        begun = time.monotonic()
        while left and (passed := time.monotonic() - begun) < SERVED_SECONDS:
            while to_connect and len(ranks) < len(self._hellos) * passed / SPREAD_SECONDS:
                socket = context.socket(zmq.DEALER)
                socket.immediate = True
                socket.connect(endpoint)
                poller.register(socket, zmq.POLLIN | zmq.POLLOUT)
                ranks[socket] = to_connect.pop()
            for socket, events in poller.poll(5):
                rank = ranks[socket]
                if events & zmq.POLLOUT:
                    socket.send_multipart(self._hellos[rank])
                    poller.modify(socket, zmq.POLLIN)
                while socket.events & zmq.POLLIN:
                    answer = open_envelope(socket.recv_multipart())
                    if answer.kind == "welcome":
                        for _, frames in self._messages[rank]:
                            socket.send_multipart(frames)
                    elif answer.kind == "ack":
                        first.setdefault(rank, time.monotonic() - begun)
                        if answer.number == self._messages[rank][-1][0]:
                            left.discard(rank)
        context.destroy(linger=0)
        return list(first.values())
