"""The process that follows files for `trackside run --follow`: ``python -m trackside_daemon.cli.run.follower SINCE PLACE… -- COMMAND…``.

It pushes to the daemon of $TRACKSIDE_ENDPOINT until SIGTERM, after which the runs are finished, or SIGUSR1, after which they
have failed.
"""

import os
import signal
import sys
from collections.abc import Callable

from trackside_daemon.bridges.finding import FOLLOWED
from trackside_daemon.bridges.following import POLL_SECONDS, Follower, Stored
from trackside_daemon.cli.sources.source import Source, SourceError
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.model.text import shown

BEHIND = "--"
"""What the followed command is behind."""

AUTOMATIC = "auto"
"""Place that stands for `FOLLOWED` in the working directory."""


def main() -> None:
    """Follow the places until a signal."""
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    end = sys.argv.index(BEHIND)
    since, *places = sys.argv[1:end]
    sys.orig_argv[:] = sys.argv[end + 1 :]  # the runs are those of the command, as the client describes them
    expanded = [one for place in places for one in (FOLLOWED if place == AUTOMATIC else [place])]
    follower = Follower(expanded, os.environ, stored_in_daemon(), _warn, since=float(since))
    follower.poll()
    while (received := signal.sigtimedwait(signals, POLL_SECONDS)) is None:
        follower.poll()
    follower.close("failed" if received.si_signo == signal.SIGUSR1 else "finished")


def stored_in_daemon(source: Source | None = None) -> Callable[[str], Stored]:
    """Return a function that asks a daemon, by default the one that pushes go to, for the samples of a run."""
    from trackside_daemon.cli.sources.daemon_lookup import find_local_daemon
    from trackside_daemon.questions.runs import MOST_METRICS, Run

    def stored(run: str) -> Stored:
        try:
            asked = source or find_local_daemon().source
            counts: Stored = {}
            found = asked.ask(Run(id=run, limit=MOST_METRICS))
            for metric in found["metrics"] if found["id"] == run else ():  # not of another run with this name
                counts[metric["key"]] = counts.get(metric["key"], 0) + int(metric["count"])
        except (SourceError, HistoryError, OSError):  # mostly: the history has no such run
            return {}
        return counts

    return stored


def _warn(line: str) -> None:
    print(f"trackside: --follow: {shown(line)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
