"""A daemon of one user and training jobs of others: members of its group push, others get an error.

Users and groups are unused numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT, Daemon, clean_environ
from unprivileged_users import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")

DAEMON, TRAINER, STRANGER = 61001, 61002, 61003
SHARED = 61100

TRAINING = """
import logging, sys
logging.basicConfig(format="%(message)s")
import trackside
trackside.push(step=1, loss=0.5)
sys.stdin.readline()
trackside.finish()
print("trained on")
"""


@pytest.fixture(scope="module", autouse=True)
def everybody_can_run_this() -> None:
    """Check that other users can run this Python, or fail with the missing requirement."""
    code = "import trackside.run, trackside_daemon.cli.main, sys, os; print(os.getuid(), os.getgroups())"
    tried = subprocess.run(
        [*launcher(TRAINER, SHARED), sys.executable, "-c", code],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if tried.stdout != f"{TRAINER} [{SHARED}]\n":
        pytest.fail(
            f"{sys.executable} and {ROOT} have to be such that every user can run and read them, or mount namespaces be"
            f" allowed (CAP_SYS_ADMIN): {tried.stderr}"
        )


@pytest.fixture
def shared(place: Path) -> Path:
    """A directory like /run/trackside from a service manager: the daemon's user owns it, and the group may enter."""
    os.chown(place, DAEMON, SHARED)
    place.chmod(0o750)
    (place / "history").mkdir(mode=0o700)
    os.chown(place / "history", DAEMON, SHARED)
    return place


@pytest.fixture
def owned() -> Iterator[Path]:
    """A directory that a stranger owns."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        os.chown(directory, STRANGER, -1)
        yield Path(directory)


@pytest.fixture
def of_another_user(shared: Path) -> Iterator[Daemon]:
    """A daemon with a group that may push to it."""
    daemon = Daemon(shared, f"--push.group={SHARED}", launcher=launcher(DAEMON, SHARED))
    yield daemon
    daemon.stop()


@pytest.fixture
def train(start_training: Callable[..., Process]) -> Callable[..., Process]:
    """A function that starts a training as a user; the training ends when its input does."""

    def start(daemon: Daemon, name: str, user: int, *groups: int, **more: str) -> Process:
        as_user = launcher(user, *groups)
        return start_training(daemon, "-c", TRAINING, launcher=as_user, TRACKSIDE_RUN_NAME=name, **more)

    return start


def test_a_user_outside_the_group_learns_which_one_to_join_and_trains_on(
    of_another_user: Daemon, train: Callable[..., Process], owned: Path
) -> None:
    training = train(of_another_user, "stranger", STRANGER, TRACKSIDE_SPOOL=str(owned))
    assert training.stderr is not None
    reported = training.stderr.readline()
    assert reported.startswith(
        f"trackside: no daemon found at {of_another_user.endpoint} (permission denied: join the group {SHARED}); training"
    )
    printed, rest = training.communicate("\n", timeout=DEADLINE)
    assert (training.returncode, printed, rest) == (0, "trained on\n", "")
    assert not any("stranger" in name for name in of_another_user.series())


def test_token_and_address_stay_the_daemons_own(of_another_user: Daemon, shared: Path) -> None:
    for name, mode in {"push.sock": 0o660, "push.token": 0o600, "push.address": 0o600, "push.sock.lock": 0o600}.items():
        status = (shared / name).stat()
        assert (name, status.st_uid, status.st_mode & 0o777) == (name, DAEMON, mode)
    assert (shared / "push.sock").stat().st_gid == SHARED


def test_a_daemon_that_is_not_in_the_group_itself_logs_it_in_one_line(shared: Path) -> None:
    refused = subprocess.run(
        [
            *launcher(DAEMON),
            *(sys.executable, "-m", "trackside_daemon", "daemon", f"--push.endpoint=ipc://{shared}/push.sock"),
            *("--web.listen-address=127.0.0.1:0", f"--storage.path={shared}/history", f"--push.group={SHARED}"),
        ],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"trackside: {shared}/push.sock: uid {DAEMON} cannot give it to group {SHARED}: not a member of it; add this user"
        f" with: usermod --append --groups {SHARED} USER, or name another group with --push.group\n"
    )
    assert not (shared / "push.sock").exists()
