"""For how long the daemon lets its clients collect rows."""

from __future__ import annotations

import pytest

from trackside.wire import Envelope, open_envelope
from trackside_daemon.ingest.client_session import ClientSession, Shared
from trackside_daemon.ingest.messages import MessageLimits
from trackside_daemon.ingest.requests import Pacing
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.runs import Runs


@pytest.mark.parametrize(
    ("sessions", "milliseconds"), [(0, 200), (1, 200), (3, 200), (8, 500), (16, 1000), (1024, 2000)]
)
def test_the_time_grows_with_the_ranks_up_to_a_limit(sessions: int, milliseconds: int) -> None:
    pacing = Pacing()
    pacing.update(sessions, load=0.1)
    assert pacing.milliseconds == milliseconds


def test_a_busy_daemon_lets_its_clients_collect_for_longer_until_it_is_not_busy() -> None:
    pacing = Pacing()
    for _ in range(20):
        pacing.update(8, load=0.9)
    assert pacing.milliseconds == 2000
    for _ in range(40):
        pacing.update(8, load=0.1)
    assert pacing.milliseconds == 500


def test_only_clients_that_have_another_time_get_a_message() -> None:
    shared = Shared({}, Runs(PageLimits(), 60.0), MessageLimits())
    pacing, first, second = Pacing(), ClientSession(bytes(16), shared), ClientSession(bytes(15) + b"2", shared)
    first.peer = b"one"
    assert pacing.messages([first, second]) == []
    pacing.update(16, load=0.0)
    ((peer, *frames),) = pacing.messages([first])
    assert (peer, open_envelope(frames)) == (b"one", Envelope("pace", bytes(16), 1000))
    assert [message[0] for message in pacing.messages([first, second])] == [b""]
    second.restart()  # it comes back on a new connection, where a client begins with the usual time
    assert len(pacing.messages([first, second])) == 1
