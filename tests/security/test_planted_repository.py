"""A ``.git`` that another user has put above a script: it shows no file of the training's user, and stops no training.

Users are unused numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from client.repository import Repository
from ingest.conftest import SessionsHarness
from processes import DEADLINE, clean_environ
from unprivileged_users import launcher
from wire_messages import FakeSession

from trackside.environment import git
from trackside.environment.git import commit, dirty
from trackside_daemon.model.records import SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRAINER, STRANGER = 61002, 61003
TOKEN = "UGwXST53HB8gllGMUKzdoGTyj7tfhWTN"
KEY = "0123456789abcdef" * 2 + "01234567"  # some API keys look like a commit

ASK = """
import sys
from trackside.environment.git import commit, dirty
print(repr((commit(sys.argv[1]), dirty(sys.argv[1]))))
"""

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


def link_head(planted: Path, secret: Path) -> None:
    (planted / "HEAD").symlink_to(secret)


def name_secret(planted: Path, secret: Path) -> None:
    (planted / "HEAD").write_text(f"ref: ../../private/{secret.name}\n")


def name_secret_at_once(planted: Path, secret: Path) -> None:
    (planted / "HEAD").write_text(f"ref: {secret}\n")


def link_reference(planted: Path, secret: Path) -> None:
    (planted / "HEAD").write_text("ref: refs/heads/main\n")
    (planted / "refs/heads").mkdir(parents=True)
    (planted / "refs/heads/main").symlink_to(secret)


def link_packed(planted: Path, secret: Path) -> None:
    (planted / "HEAD").write_text("ref: refs/heads/main\n")
    secret.write_text(f"{KEY} refs/heads/main\n")
    (planted / "packed-refs").symlink_to(secret)


def block(planted: Path, _: Path) -> None:
    os.mkfifo(planted / "HEAD")


def fill(planted: Path, _: Path) -> None:
    (planted / "HEAD").symlink_to("/dev/zero")


PLANTS = [link_head, name_secret, name_secret_at_once, link_reference, link_packed, block, fill]


@pytest.fixture
def secret(place: Path) -> Path:
    """A file in a directory that is closed to others."""
    (place / "private").mkdir(mode=0o700)
    path = place / "private" / "token"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture
def script(place: Path) -> Path:
    """A script in a directory that others may write to."""
    (place / "shared" / "project").mkdir(parents=True)
    (place / "shared" / "project" / "train.py").touch()
    return place / "shared" / "project" / "train.py"


@pytest.fixture
def give(place: Path) -> Callable[..., None]:
    """A function that gives everything to the trainer, but what is in some places to the stranger."""

    def share(*strange: Path) -> None:
        place.chmod(0o755)
        for owner, top in ((TRAINER, place), *((STRANGER, path) for path in strange)):
            for path in (top, *(top.rglob("*") if top.is_dir() else ())):
                os.chown(path, owner, owner, follow_symlinks=False)

    return share


def answer_to(user: int, script: Path) -> str:
    """Return what a process of a user finds around a script."""
    command = [*launcher(user), sys.executable, "-c", ASK, str(script)]
    # A process that reads without end must not fill this machine, and one that waits must end.
    limits = ["prlimit", "--as=2000000000", "timeout", "20"]
    environ = clean_environ()
    return subprocess.run(
        [*limits, *command], env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False
    ).stdout.strip()


@needs_users
@pytest.mark.parametrize("plant", PLANTS)
def test_a_repository_of_another_user_is_none(
    secret: Path, script: Path, give: Callable[..., None], plant: Callable[[Path, Path], None]
) -> None:
    planted = script.parents[1] / ".git"
    planted.mkdir()
    plant(planted, secret)
    give(planted)
    assert answer_to(TRAINER, script) == "('', None)"


@needs_users
@pytest.mark.parametrize("kind", ["file", "link", "target"])
def test_another_users_way_to_a_repository_is_none(place: Path, give: Callable[..., None], kind: str) -> None:
    own = Repository(place / "own")
    own.commit()
    (place / "shared").mkdir()
    script = place / "shared" / "train.py"
    script.touch()
    planted = place / "shared" / ".git"
    if kind == "file":
        planted.write_text(f"gitdir: {own.folder / '.git'}\n")
    else:
        planted.symlink_to(own.folder / ".git")
    give(own.folder if kind == "target" else planted)
    assert answer_to(TRAINER, script) == "('', None)"


@needs_users
@pytest.mark.parametrize("owner", [TRAINER, 0])
def test_a_repository_of_the_own_user_or_of_root_counts(place: Path, give: Callable[..., None], owner: int) -> None:
    repository = Repository(place / "own")
    expected = repository.commit()
    give()
    if owner != TRAINER:
        for path in (repository.folder, *repository.folder.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
    assert answer_to(TRAINER, repository.folder / "deep/er/train.py") == f"('{expected}', False)"


@needs_users
def test_root_has_the_repositories_of_the_user_of_sudo_and_no_others(
    place: Path, give: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(place / "own")
    expected = repository.commit()
    give()
    script = str(repository.folder / "deep/er/train.py")
    assert (commit(script), dirty(script)) == ("", None)
    monkeypatch.setenv("SUDO_UID", str(TRAINER))
    assert (commit(script), dirty(script)) == (expected, False)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert commit(script) == ""


@pytest.mark.parametrize("plant", PLANTS)
def test_no_link_is_followed_and_nothing_is_waited_for_in_an_own_repository(
    secret: Path, script: Path, plant: Callable[[Path, Path], None]
) -> None:
    planted = script.parents[1] / ".git"
    planted.mkdir()
    plant(planted, secret)
    # In a process: a read that waits or never ends must not stop the tests.
    assert answer_to(os.getuid(), script) == "('', None)"


@pytest.mark.parametrize(
    "text", [TOKEN, "abc", KEY.upper(), KEY + "0", f"x{KEY}", "", "\0", "ref:", "ref: refs", "ref: /"]
)
def test_only_a_hash_is_a_commit(script: Path, text: str) -> None:
    (script.parent / ".git").mkdir()
    for place in ("HEAD", "refs/heads/main"):
        path = script.parent / ".git" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        assert commit(str(script)) == ""
        (script.parent / ".git/HEAD").write_text("ref: refs/heads/main\n")


@pytest.mark.parametrize("name", ["main", "a/b.c", "dependabot/pip/torch-2+cu.1", "größe", "user@host#1", KEY])
def test_every_name_that_git_allows_is_a_reference(place: Path, name: str) -> None:
    repository = Repository(place / "own")
    expected = repository.commit()
    repository.git("branch", "--move", name)
    assert commit(str(repository.folder / "deep/er/train.py")) == expected
    repository.git("pack-refs", "--all")
    assert commit(str(repository.folder / "deep/er/train.py")) == expected


def test_a_sha_256_is_a_commit(script: Path) -> None:
    (script.parent / ".git").mkdir()
    (script.parent / ".git/HEAD").write_text("ab" * 32 + "\n")
    assert commit(str(script)) == "ab" * 32


def test_of_very_many_packed_references_the_first_are_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(place / "own")
    expected = repository.commit()
    repository.git("pack-refs", "--all")
    packed = repository.folder / ".git/packed-refs"
    with packed.open("a") as file:
        file.writelines(f"{expected} refs/tags/{number}\n" for number in range(100))
    monkeypatch.setattr(git, "PACKED_BYTES", 200)
    script = str(repository.folder / "deep/er/train.py")
    assert commit(script) == expected
    (repository.folder / ".git/HEAD").write_text("ref: refs/tags/99\n")
    assert commit(script) == ""


@pytest.fixture
def tracked(place: Path) -> Path:
    """A tracked file of an own repository, whose time is new."""
    repository = Repository(place / "own")
    repository.commit()
    path = repository.folder / "deep/er/train.py"
    os.utime(path, (10**9, 10**9))
    return path


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_tracked_file_that_is_replaced_while_it_is_read_is_not_waited_for(
    tracked: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    is_as_old = git._is_as_old

    def replace_meanwhile(*arguments: Any) -> bool:
        tracked.unlink()
        tracked.symlink_to("/dev/zero") if kind == "link" else os.mkfifo(tracked)
        return is_as_old(*arguments)

    monkeypatch.setattr(git, "_is_as_old", replace_meanwhile)
    assert dirty(str(tracked.parent / "train.py")) is None


@pytest.mark.parametrize("text", [TOKEN, KEY[:39], f"{KEY} ", "x" * 64])
def test_the_daemon_drops_a_commit_of_an_older_client_that_is_none(text: str) -> None:
    desk = SessionsHarness()
    desk.greet(FakeSession(git_commit=text))
    opened = [record for record in desk.house.records if isinstance(record, SessionOpened)]
    assert [record.hello.identity.git_commit for record in opened] == [""]
    assert not any(text in sample.labels for sample in desk.house.page())


def test_the_daemon_stores_a_hash() -> None:
    desk = SessionsHarness()
    desk.greet(FakeSession(git_commit=KEY))
    assert any(KEY in sample.labels for sample in desk.house.page())
