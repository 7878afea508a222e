"""The view of NCCL RAS, as its port answers."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from trackside_daemon.captures.hang.ras import RasView, compared, ras_view
from trackside_daemon.captures.hang.verdict import HangVerdict

# As NCCL 2.26 prints it (NVIDIA/nccl#1911).
ANSWER = """NCCL version 2.26.2 compiled with CUDA 12.6
Communicators... (0.00s)
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========
#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation {count}
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
FOUND = HangVerdict("never_arrived", "Rank 12 never arrived.", (12,))


def served(answer: bytes) -> RasView | None:
    """Return the view from a port that gives this answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                assert connection.recv(100) == b"verbose status\n"
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        view = ras_view((), server.getsockname())
        thread.join()
    return view


def test_the_listed_ranks_are_those_behind_or_those_ahead() -> None:
    behind = served(ANSWER.format(count=639).encode())
    assert behind is not None
    assert (behind.behind, behind.ahead) == (frozenset((12, 13)), frozenset())
    assert compared(FOUND, behind).text.startswith(
        "Rank 12 never arrived. NCCL RAS reports 2 ranks have launched up to"
    )
    assert "disagrees" in compared(FOUND._replace(ranks=(3,)), behind).text
    ahead = served(ANSWER.format(count=641).encode())
    assert ahead is not None
    assert (ahead.behind, ahead.ahead) == (frozenset(), frozenset((12, 13)))
    text = compared(FOUND, ahead).text
    assert text.endswith("NCCL RAS disagrees: it reports ranks 12 and 13 ahead of the others.")


def test_no_trouble_is_reported() -> None:
    view = served(b"NCCL version 2.24.3\n    0   1   RUNNING   OK\n")
    assert view == RasView()
    assert compared(FOUND, view).text.endswith("NCCL RAS reports no trouble.")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\x00" * 10])
def test_another_service_on_the_port_has_no_view(answer: bytes) -> None:
    assert served(answer) is None


def test_a_closed_port_has_no_view() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert ras_view((), address) is None


def test_an_answer_that_fills_memory_is_cut() -> None:
    view = served(b"NCCL version 2.24.3\n" + b"  Rank 1 -- \x1b MISMATCH\n" * 5000)
    assert view is not None
    assert len(view.lines) == 12
    assert all(line.isprintable() for line in view.lines)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a socket to another user")
def test_only_a_user_of_the_run_answers_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.fchown(server.fileno(), 61202, -1)
        assert ras_view((61201,), server.getsockname()) is None
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):  # it was not even asked
            server.accept()
