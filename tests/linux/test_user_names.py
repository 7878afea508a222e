"""Names of users, resolved by a server that may be slow."""

from __future__ import annotations

import os
import pwd
import threading
from typing import TYPE_CHECKING

import pytest
from processes import eventually

from trackside_daemon.linux.user_names import RETRY_SECONDS, UserNames, user_name

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = os.getuid()
USER = pwd.getpwuid(UID).pw_name
UNUSED_UID = 4242424242


class Directory:
    """A server of user names that may be unreachable.

    Attributes:
        answers: An event; while it is set, the server answers.
        asked: The requested users.
        threads: The threads that made requests.
    """

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[int] = []
        self.threads: set[int] = set()
        self.known = {UID: USER}

    def __call__(self, uid: int) -> pwd.struct_passwd:
        self.asked.append(uid)
        self.threads.add(threading.get_ident())
        self.answers.wait()
        if uid not in self.known:
            raise KeyError(uid)
        return pwd.struct_passwd((self.known[uid], "x", uid, uid, "", "/", "/bin/sh"))


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    made = Directory()
    monkeypatch.setattr(pwd, "getpwuid", made)
    yield made
    made.answers.set()


def test_a_user_is_a_number_until_the_name_is_there(directory: Directory) -> None:
    users = UserNames()
    assert users.name(UID) == str(UID)
    directory.answers.set()
    eventually(lambda: users.name(UID) == USER)


def test_users_are_asked_for_by_one_thread_once_each_without_any_wait(directory: Directory) -> None:
    users = UserNames()
    crowd = range(UNUSED_UID, UNUSED_UID + 50)
    directory.known = {uid: f"user-{uid}" for uid in crowd}
    for _ in range(3):
        assert [users.name(uid) for uid in crowd] == [str(uid) for uid in crowd]
    directory.answers.set()
    eventually(lambda: [users.name(uid) for uid in crowd] == list(directory.known.values()))
    assert directory.asked == list(crowd)
    assert len(directory.threads - {threading.get_ident()}) == 1


def test_a_uid_that_had_no_name_is_asked_for_again_after_a_while(directory: Directory) -> None:
    now = [0.0]
    users = UserNames(lambda: now[0])
    directory.answers.set()
    users.name(UNUSED_UID)
    eventually(lambda: directory.asked == [UNUSED_UID])
    now[0] = RETRY_SECONDS - 1
    directory.known[UNUSED_UID] = "late"
    assert users.name(UNUSED_UID) == str(UNUSED_UID)
    now[0] = RETRY_SECONDS
    eventually(lambda: users.name(UNUSED_UID) == "late")
    assert directory.asked == [UNUSED_UID, UNUSED_UID]


def test_a_number_that_no_user_can_have_is_no_user() -> None:
    assert user_name(2**80) == ""
    assert user_name(UID) == USER
