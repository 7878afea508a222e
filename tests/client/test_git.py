"""Detection of changes in the code around a script, compared with the answer of git itself."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from client.repository import Repository

from trackside.environment import git

if TYPE_CHECKING:
    from collections.abc import Callable

TRAIN = "deep/er/train.py"
MINUTE = 60 * 10**9


@pytest.fixture(params=[2, 3, 4])
def version(request: pytest.FixtureRequest) -> int:
    """The version of the index; git writes version 3 only where an entry needs it."""
    number: int = request.param
    return number


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository of some files, committed a minute before the index was written."""
    made = Repository(tmp_path / "repository")
    (made.folder / TRAIN).write_text("lr = 0.1\n")
    (made.folder / "empty").touch()
    (made.folder / "skipped").touch()
    (made.folder / "large").write_bytes(bytes(git.HASHED_BYTES + 1))
    (made.folder / "link").symlink_to("large")
    for name in (b"x" * 200, "größe".encode(), b"caf\xe9", b"z"):  # a long name is followed by short ones
        (made.folder / "deep" / os.fsdecode(name)).write_bytes(name)
    for path in made.folder.rglob("*"):
        if ".git" not in path.parts:
            earlier(path)
    earlier(made.folder / "large")
    made.commit()
    return made


def dirty(script: str, seconds: float = 600.0) -> bool | None:
    """Return what is found in more time than a training gives it, as on a busy machine."""
    return git.dirty(script, seconds)


def earlier(path: Path, by: int = MINUTE) -> None:
    """Give a file another time."""
    modified = path.lstat().st_mtime_ns - by
    os.utime(path, ns=(modified, modified), follow_symlinks=False)


def write(repository: Repository, version: int) -> None:
    """Write the index in a *version*."""
    if version == 3:
        repository.git("update-index", "--skip-worktree", "skipped")
    else:
        repository.git("update-index", "--index-version", str(version))
    assert (repository.folder / ".git/index").read_bytes()[:8] == b"DIRC" + version.to_bytes(4, "big")


def script(repository: Repository) -> str:
    """Return the path of a script that no test changes."""
    return str(repository.folder / "deep" / "z")


def git_reports_changes(repository: Repository) -> bool:
    return bool(
        subprocess.run(["git", "--no-optional-locks", "diff", "--quiet"], check=False, cwd=repository.folder).returncode
    )


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_a_file(folder: Path) -> None:
    (folder / "train.py").unlink()
    folder.rmdir()
    folder.touch()


def replace_by_a_link(path: Path) -> None:
    content = path.read_text()
    path.unlink()
    path.symlink_to(content)  # of the same size and hash


def point_elsewhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("LARGE")
    earlier(path, 2 * MINUTE)  # git looks at whole seconds only


def copy(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


CHANGES: dict[str, tuple[str, Callable[[Path], object], bool]] = {
    "nothing": ("deep", lambda _: None, False),
    "a longer text": (TRAIN, lambda path: path.write_text("lr = 0.001\n"), True),
    "a text as long": (TRAIN, lambda path: path.write_text("lr = 0.2\n"), True),
    "a new time": (TRAIN, earlier, False),
    "a copy": (TRAIN, copy, False),
    "a file that is gone": (TRAIN, Path.unlink, True),
    "a folder that is gone": ("deep/er", lambda path: path.rename(path.parent.parent.parent / "away"), True),
    "a file in a folder's place": ("deep/er", replace_by_a_file, True),
    "a folder in its place": (TRAIN, replace_by_a_folder, True),
    "a link in its place": (TRAIN, replace_by_a_link, True),
    "a link elsewhere": ("link", point_elsewhere, True),
    "a link with a new time": ("link", earlier, False),
    "more in an empty file": ("empty", lambda path: path.write_text("x"), True),
    "very much in an empty file": ("empty", lambda path: path.write_bytes(bytes(git.HASHED_BYTES + 1)), True),
    "nothing in a file": (TRAIN, lambda path: path.write_text(""), True),
    "a large file cut": ("large", lambda path: os.truncate(path, git.HASHED_BYTES), True),
    "a name that is no text": ("deep/caf\udce9", lambda path: path.write_text("CAF_"), True),
    "the last of all": ("link", Path.unlink, True),
    "after a long name": ("deep/z", lambda path: path.write_text("Z"), True),
    "a file that is not tracked": ("deep/new.py", lambda path: path.write_text("x"), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_as_git_sees_it(repository: Repository, version: int, change: str) -> None:
    write(repository, version)
    name, act, changed = CHANGES[change]
    act(repository.folder / name)
    assert dirty(script(repository)) is changed
    assert git_reports_changes(repository) is changed


def test_what_was_changed_is_clean_again_once_it_is_committed(repository: Repository) -> None:
    (repository.folder / TRAIN).write_text("lr = 0.2\n")
    assert dirty(script(repository)) is True
    repository.commit()
    assert dirty(script(repository)) is False


def test_what_is_staged_is_not_seen(repository: Repository) -> None:
    (repository.folder / TRAIN).write_text("lr = 0.2\n")
    repository.git("add", "-A")
    assert dirty(script(repository)) is git_reports_changes(repository) is False


def test_without_a_script_the_working_directory_counts(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository.folder / "deep")
    assert dirty("") is dirty("er/train.py") is False
    (repository.folder / "empty").write_text("x")
    assert dirty("") is True


def same_moment(repository: Repository, content: str) -> None:
    """Change the script with the same time as the index, so that its time does not show the change."""
    path = repository.folder / TRAIN
    before = path.stat().st_mtime_ns
    path.write_text(content)
    for one in (path, repository.folder / ".git/index"):
        os.utime(one, ns=(before, before))


@pytest.mark.parametrize(("content", "changed"), [("lr = 0.1\n", False), ("lr = 0.2\n", True)])
def test_a_change_within_the_moment_in_which_the_index_was_written_is_seen(
    repository: Repository, content: str, changed: bool
) -> None:
    same_moment(repository, content)
    assert dirty(script(repository)) is git_reports_changes(repository) is changed


def test_a_file_that_git_has_marked_as_perhaps_changed_is_read(repository: Repository) -> None:
    repository.git("config", "core.trustctime", "false")  # that would tell, when a second has just ended
    path = repository.folder / TRAIN
    same_moment(repository, "lr = 0.2\n")
    (repository.folder / "another").touch()
    repository.git("add", "another")  # which writes a size of 0 where it cannot know
    assert "size: 0\t" in repository.git("ls-files", "--debug", TRAIN)
    assert dirty(script(repository)) is True
    path.write_text("lr = 0.1\n")
    assert dirty(script(repository)) is False


def test_an_index_without_nanoseconds_is_compared_by_seconds(repository: Repository) -> None:
    path = repository.folder / TRAIN
    os.utime(path, ns=(10**18, 10**18))
    repository.git("update-index", "--refresh")
    os.utime(path, ns=(10**18, 10**18 + 5))
    assert dirty(script(repository), 60) is False
    path.write_text("lr = 0.2\n")
    os.utime(path, ns=(10**18, 10**18 + 7))
    assert dirty(script(repository)) is False  # nobody can see it
    os.utime(path, ns=(10**18, 10**18 + 10**9))
    assert dirty(script(repository)) is True


def test_a_large_file_with_a_new_time_alone_may_or_may_not_have_changed(repository: Repository) -> None:
    earlier(repository.folder / "large")
    assert dirty(script(repository)) is None
    (repository.folder / TRAIN).write_text("lr = 0.2\n")
    assert dirty(script(repository)) is True


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_has_to_ignore_is_ignored(repository: Repository, flag: str) -> None:
    repository.git("update-index", flag, TRAIN)
    (repository.folder / TRAIN).unlink()
    assert dirty(str(repository.folder / "empty")) is git_reports_changes(repository) is False


def test_a_file_that_is_to_be_added_has_changed(repository: Repository) -> None:
    (repository.folder / "new.py").write_text("x")
    repository.git("add", "--intent-to-add", "new.py")
    assert dirty(script(repository)) is git_reports_changes(repository) is True


def test_a_conflict_is_a_change(repository: Repository) -> None:
    repository.git("branch", "other")
    for branch, rate in (("main", "0.2"), ("other", "0.3")):
        repository.git("checkout", "--quiet", branch)
        (repository.folder / TRAIN).write_text(f"lr = {rate}\n")
        repository.commit()
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("merge", "main")
    assert dirty(script(repository)) is git_reports_changes(repository) is True


def test_a_conflict_is_a_change_although_the_file_is_as_one_side_has_it(repository: Repository) -> None:
    blob = repository.git("rev-parse", f"HEAD:{TRAIN}")
    add(repository, f"0 {'0' * 40}\t{TRAIN}\n100644 {blob} 2\t{TRAIN}\n")
    assert dirty(script(repository)) is git_reports_changes(repository) is True


def test_a_worktree_has_an_index_of_its_own(repository: Repository, tmp_path: Path) -> None:
    repository.git("rm", "--quiet", "large")
    repository.commit()
    repository.git("worktree", "add", "--quiet", "-b", "other", str(tmp_path / "worktree"))
    there = tmp_path / "worktree" / TRAIN
    (repository.folder / TRAIN).write_text("lr = 0.001\n")
    assert (dirty(script(repository)), dirty(str(there))) == (True, False)
    there.write_text("lr = 0.2\n")
    repository.git("checkout", "--quiet", ".")
    assert (dirty(script(repository)), dirty(str(there))) == (False, True)


def test_a_submodule_counts_by_itself(repository: Repository, tmp_path: Path) -> None:
    Repository(tmp_path / "inner").commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(tmp_path / "inner"), "sub")
    repository.commit()
    inside = repository.folder / "sub" / TRAIN
    assert (dirty(script(repository)), dirty(str(inside))) == (False, False)
    inside.write_text("lr = 0.2\n")
    assert (dirty(script(repository)), dirty(str(inside))) == (False, True)


def test_a_permission_does_not_count(repository: Repository) -> None:
    (repository.folder / TRAIN).chmod(0o755)
    assert dirty(script(repository)) is False


def test_without_a_repository_or_an_index_the_commit_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert dirty(str(tmp_path / "train.py")) is None
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert dirty(str(tmp_path / "train.py")) is None
    assert dirty(str(Repository(tmp_path / "new").folder / TRAIN)) is None


def test_a_split_a_sparse_and_a_sha_256_index_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Repository(tmp_path / name) for name in ("split", "sparse", "sha256")]
    (tmp_path / "sha256" / ".git").rename(tmp_path / "away")
    made[2].git("init", "--quiet", "--object-format=sha256")
    for one in made:
        (one.folder / "other").mkdir()
        (one.folder / "other" / "file").touch()
        one.commit()
    scripts = [str(one.folder / TRAIN) for one in made]
    assert [dirty(one) for one in scripts] == [False, False, None]
    made[0].git("update-index", "--split-index")
    made[1].git("sparse-checkout", "init", "--cone", "--sparse-index")
    made[1].git("sparse-checkout", "set", "deep/er")
    assert [dirty(one) for one in scripts] == [None, None, None]
    monkeypatch.setattr(git, "_entries", lambda _: [])
    assert dirty(scripts[2]) is None


def add(repository: Repository, entry: str) -> None:
    """Add lines to the index, as of files that are not there."""
    subprocess.run(["git", "update-index", "--index-info"], cwd=repository.folder, input=entry, text=True, check=True)


def test_a_repository_that_is_too_large_or_takes_too_long_is_not_known(repository: Repository) -> None:
    (repository.folder / "deep/z").write_text("Z")
    assert dirty(script(repository), 0.0) is None
    index = repository.folder / ".git/index"
    content = index.read_bytes()
    for size, known in ((git.INDEX_BYTES, True), (git.INDEX_BYTES + 1, None)):  # with an extension that is left alone
        filling = bytes(size - len(content) - 8)
        index.write_bytes(content[:-20] + b"FILL" + struct.pack(">I", len(filling)) + filling + content[-20:])
        assert dirty(script(repository)) is known
    index.write_bytes(content)
    blob = repository.git("rev-parse", f"HEAD:{TRAIN}")
    add(repository, "".join(f"100644 {blob}\tx{number}\n" for number in range(git.MAX_FILES - 9)))
    assert dirty(script(repository)) is True
    add(repository, f"100644 {blob}\tx\n")
    assert dirty(script(repository)) is None


def test_a_file_that_cannot_be_read_is_not_known(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier(repository.folder / TRAIN)

    read = git._read

    def refuse(place: str) -> NoReturn:
        raise PermissionError(place)

    def read_others(path: Path, size: int) -> bytes:
        return refuse(path.name) if path.name == "train.py" else read(path, size)

    assert dirty(script(repository)) is False
    with monkeypatch.context() as patch:
        patch.setattr(git, "_read", read_others)
        assert dirty(script(repository)) is None
    monkeypatch.setattr(os, "lstat", refuse)
    assert dirty(script(repository)) is None


def test_a_damaged_index_raises_nothing(repository: Repository, version: int) -> None:
    write(repository, version)
    path = repository.folder / ".git/index"
    index = path.read_bytes()
    for cut in range(0, len(index) - 200, 7):
        path.write_bytes(index[:cut])
        assert dirty(script(repository)) is None
    for place in range(0, len(index), 5):
        path.write_bytes(index[:place] + bytes([index[place] ^ 0xFF]) + index[place + 1 :])
        assert dirty(script(repository)) in {None, True, False}
    path.write_bytes(b"\xff" * 1000)
    assert dirty(script(repository)) is None
