"""The chain from a failing training to the daemon's webhook, without Prometheus."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from end_to_end.inbox import Inbox
from end_to_end.many_ranks import nans, ranks
from processes import Daemon, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process
    from end_to_end.inbox import Letter

NAN = "TracksideNonFinite"
PUSHES = "import time, trackside; trackside.push(step=1, loss=0.5); print('trains', flush=True); time.sleep(600)"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """The server that the webhook posts to."""
    with closing(Inbox()) as box:
        yield box


@pytest.fixture
def environ(inbox: Inbox) -> dict[str, str]:
    """The environment that makes a daemon post to the inbox."""
    return {"TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL": f"{inbox.url}/direct"}


def told(inbox: Inbox, alert: str, status: str = "firing") -> list[Letter]:
    return [letter for letter in inbox.of("direct") if letter.has(alert, status)]


def test_a_nan_of_64_ranks_is_one_message(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(environ=environ)
    with ranks(daemon, 64, monkeypatch) as runs:
        for run in runs:
            run.push(step=1, loss=float("nan"))
        letter = eventually(lambda: told(inbox, NAN))[0]
        notified = eventually(lambda: [one for one in nans(daemon) if "webhook" in one["notified"]])
    (alert,) = [one for one in letter.body["alerts"] if one["labels"]["alertname"] == NAN]
    assert (alert["labels"]["run"], alert["labels"]["severity"]) == ("net", "critical")
    assert len(notified) == 1
    assert len(told(inbox, NAN)) == 1


def test_a_killed_process_is_told(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(environ=environ)
    training = start_training(daemon, "-c", PUSHES, TRACKSIDE_RUN_NAME="net")
    assert training.stdout is not None
    assert training.stdout.readline() == "trains\n"
    eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="net"}'))
    training.kill()
    letter = eventually(lambda: told(inbox, "TracksideTrainingProcessDied"))[0]
    assert "SIGKILL" in str(letter.body)


def test_a_daemon_that_is_killed_during_a_nan_neither_resolves_nor_tells_it_again(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon(environ=environ)
    with trackside.init("net", endpoint=daemon.endpoint) as run:
        run.push(step=1, loss=float("nan"))
        eventually(lambda: [one for one in nans(daemon) if "webhook" in one["notified"]])
        daemon.stop(signal.SIGKILL)
        again = start_daemon(environ=environ)
        run.push(step=2, loss=float("nan"))
        run.alert("another", severity="critical")  # told after whatever the sink had to say of the NaN
        eventually(lambda: told(inbox, "TracksideUserAlert"))
        assert [one["ended"] for one in nans(again)] == [None]
    assert len([letter for letter in inbox.of("direct") if _is_news(letter)]) == 1
    assert not told(inbox, NAN, "resolved")


def _is_news(letter: Letter) -> bool:
    """Return whether a message is about the NaN alone, not a later one about all firing alerts of the group."""
    return letter.fires(NAN) and not letter.fires("TracksideUserAlert")
