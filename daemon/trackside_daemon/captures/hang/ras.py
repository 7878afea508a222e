"""The view of NCCL RAS, which NCCL 2.24 and later serve to the local machine (NCCL's user guide, "RAS")."""

import re
import socket
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from trackside_daemon.captures.hang.places import cleaned
from trackside_daemon.captures.hang.verdict import HangVerdict, ranks_text
from trackside_daemon.linux.socket_address import strangers

ADDRESS = ("127.0.0.1", 28028)
SECONDS = 1.0  # time limit of the whole answer
BYTES = 256 * 1024
LINES = 12  # most lines that are kept

_TROUBLE = re.compile(r"MISMATCH|INCOMPLETE|TIMEOUT|unresponsive|unreachable|missing|launched up to operation")
_COUNT = re.compile(r" ranks? (?:has|have) launched up to operation (\d{1,18})")
_RANK = re.compile(r" *Rank (\d{1,9}) --")


class RasView(NamedTuple):
    """Report of NCCL RAS.

    Attributes:
        lines: The first lines that report trouble.
        behind: The listed ranks whose count of operations is the lowest, by their number in the communicator.
        ahead: The other listed ranks. NCCL lists the smaller part of the ranks, which may be either.
    """

    lines: tuple[str, ...] = ()
    behind: frozenset[int] = frozenset()
    ahead: frozenset[int] = frozenset()


def ras_view(users: Collection[int], address: tuple[str, int] = ADDRESS) -> RasView | None:
    """Return what NCCL RAS reports to these users; None if it does not answer within a second, or another user does."""
    if strangers(*address, users):
        return None
    answer, until = b"", time.monotonic() + SECONDS
    try:
        with socket.create_connection(address, SECONDS) as connection:
            connection.sendall(b"verbose status\n")
            while len(answer) < BYTES and (left := until - time.monotonic()) > 0:
                connection.settimeout(left)
                if not (chunk := connection.recv(65536)):
                    break
                answer += chunk
    except OSError:
        if not answer:
            return None
    text = answer[:BYTES].decode(errors="replace")
    # Anything may listen on the port.
    if "NCCL version" not in text:
        return None
    return _parsed(text.splitlines())


def _parsed(text: Sequence[str]) -> RasView:
    listed: dict[int, set[int]] = {}
    count = 0
    for line in text:
        if found := _COUNT.search(line):
            count = int(found[1])
            listed.setdefault(count, set())
        elif found := _RANK.match(line):
            listed.setdefault(count, set()).add(int(found[1]))
    lines = [cleaned(line.strip()) for line in text if _TROUBLE.search(line)]
    behind = frozenset(listed[min(listed)] if listed else ())
    return RasView(tuple(lines[:LINES]), behind, frozenset().union(*listed.values()) - behind)


def compared(found: HangVerdict, view: RasView) -> HangVerdict:
    """Return a verdict with a sentence on the view of RAS, and whether it disagrees."""
    named = frozenset(found.ranks)
    if named and (named <= view.ahead or (view.behind and not named & view.behind)):
        other = f"{ranks_text(view.behind)} behind" if view.behind else f"{ranks_text(view.ahead)} ahead of the others"
        more = f"NCCL RAS disagrees: it reports {other}"
    else:
        more = f"NCCL RAS reports {view.lines[-1]}" if view.lines else "NCCL RAS reports no trouble"
    return found._replace(text=f"{found.text} {more}.")
