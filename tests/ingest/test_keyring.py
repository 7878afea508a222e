"""The keys: how they are made, their clients, and the permission to push by them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
import zmq

from trackside.environment import keys
from trackside.environment.keys import KeyFileError
from trackside_daemon.ingest.keyring import Keyring, make, require_curve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Keys of a daemon and of the client gpu7."""
    make(tmp_path / "keys", ["gpu7"])
    return tmp_path / "keys"


def tree(directory: Path) -> dict[str, int]:
    return {str(one.relative_to(directory)): stat.S_IMODE(one.lstat().st_mode) for one in directory.rglob("*")}


def public(directory: Path, name: str) -> bytes:
    return keys.read(directory / "authorized" / f"{name}.pub", "public-key")[0]


def refusal(directory: Path, *names: str) -> str:
    before = tree(directory)
    with pytest.raises(KeyFileError) as caught:
        make(directory, list(names))
    assert tree(directory) == before, "nothing is made, and nothing taken away"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_all_that_is_made_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = make(tmp_path / "keys", ["gpu7"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert tree(tmp_path / "keys") == {
        "authorized": 0o700,
        "clients": 0o700,
        "daemon.key": 0o600,
        "clients/gpu7.key": 0o600,
        "authorized/gpu7.pub": 0o600,
    }
    assert [one.name for one in made] == ["daemon.key", "gpu7.key", "gpu7.pub"]


def test_the_halves_belong_together_and_each_side_has_what_it_needs_and_no_more(directory: Path) -> None:
    daemon = Keyring(directory)
    key = keys.for_endpoint("tcp://gpu7:1", {"TRACKSIDE_KEY_FILE": str(directory / "clients" / "gpu7.key")})
    assert key is not None
    assert (key.daemon, key.public) == (daemon.public, public(directory, "gpu7"))
    assert zmq.curve_public(daemon.secret) == daemon.public
    assert zmq.curve_public(key.secret) == key.public
    secrets = (key.secret.decode(), daemon.secret.decode())
    assert not any(secret in (directory / "authorized" / "gpu7.pub").read_text() for secret in secrets)
    assert secrets[1] not in (directory / "clients" / "gpu7.key").read_text()


def test_a_further_client_is_added_and_nothing_that_is_there_changes(directory: Path) -> None:
    before = {one: one.read_text() for one in directory.rglob("*") if one.is_file()}
    made = make(directory, ["gpu8", "gpu9"])
    assert sorted(one.name for one in made) == ["gpu8.key", "gpu8.pub", "gpu9.key", "gpu9.pub"]
    assert all(one.read_text() == text for one, text in before.items())
    assert len({public(directory, name) for name in ("gpu7", "gpu8", "gpu9")}) == 3


@pytest.mark.parametrize("left", ["clients/gpu7.key", "authorized/gpu7.pub"])
def test_a_name_that_has_a_key_is_refused_also_when_half_of_it_was_removed(directory: Path, left: str) -> None:
    for one in ("clients/gpu7.key", "authorized/gpu7.pub"):
        if one != left:
            (directory / one).unlink()
    expected = f"{directory}/{left} exists and is not overwritten; choose another name, or delete it first"
    assert refusal(directory, "gpu8", "gpu7") == expected


def test_a_link_that_leads_nowhere_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (directory / "authorized" / "gpu8.pub").symlink_to(tmp_path / "elsewhere")
    assert "gpu8.pub exists and is not overwritten" in refusal(directory, "gpu8")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../gpu7", "a/b", ".hidden", "-x", "a b", "a\n", "x" * 65, "gpü"])
def test_a_name_that_is_no_file_name_is_refused(directory: Path, name: str) -> None:
    assert refusal(directory, name) == (
        f"{name!r} cannot be a client's name: letters, digits, dots, dashes and underscores can"
    )


def test_a_directory_where_others_may_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o770, 0o707):
        tmp_path.chmod(mode)
        assert refusal(tmp_path, "gpu7") == (
            f"{tmp_path}: other users may write there and so authorize themselves; run: chmod 700 {tmp_path}"
        )


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match=f"^{tmp_path}/file/keys: not a directory$"):
        make(tmp_path / "file" / "keys", ["gpu7"])


def test_when_the_last_file_cannot_be_made_none_is(directory: Path) -> None:
    (directory / "daemon.key").unlink()
    (directory / "authorized").rename(directory / "away")
    (directory / "authorized").write_text("")
    assert refusal(directory, "gpu8") == f"{directory}/authorized/gpu8.pub: not a directory"


def test_a_daemons_key_that_is_spoilt_is_reported_and_kept(directory: Path) -> None:
    (directory / "daemon.key").write_text("")
    assert "daemon.key: not a key file for this: it has no secret-key" in refusal(directory, "gpu8")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    make(tmp_path, ["gpu7"])
    assert {(one.stat().st_uid, one.stat().st_gid) for one in tmp_path.rglob("*")} == {(12345, 54321)}


def test_a_pyzmq_without_encryption_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda _: False)
    assert refusal(tmp_path, "gpu7").startswith("this pyzmq was built without CURVE")
    with pytest.raises(KeyFileError, match=r"^this pyzmq was built without CURVE"):
        require_curve()


def test_a_client_that_is_added_is_known_and_a_removed_one_is_not(directory: Path) -> None:
    ring = Keyring(directory)
    first = public(directory, "gpu7")
    assert ring.name(first) == "gpu7"
    make(directory, ["gpu8"])
    assert ring.name(public(directory, "gpu8"))
    (directory / "authorized" / "gpu7.pub").unlink()
    assert not ring.name(first)
    assert not ring.name(ring.public), "the daemon itself is no client"


def test_a_directory_that_has_not_changed_for_long_is_not_read_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(directory)
    known = public(directory, "gpu7")
    reads: list[str] = []
    real = keys.read

    def read(file: Path, *names: str) -> list[bytes]:
        reads.append(file.name)
        return real(file, *names)

    monkeypatch.setattr(keys, "read", read)
    os.utime(directory / "authorized", (1.0, 1.0))
    assert all(ring.name(known) for _ in range(3))
    assert reads == ["gpu7.pub"]
    os.utime(directory / "authorized")
    assert all(ring.name(known) for _ in range(3))
    assert reads == ["gpu7.pub"] * 4, "as long as a further change might not show"


@pytest.mark.parametrize("text", ["", "rubbish", 'public-key = "short"'])
def test_a_spoilt_file_admits_no_client_keeps_none_out_and_is_logged_once(
    directory: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (directory / "authorized" / "broken.pub").write_text(text)
    ring = Keyring(directory)
    assert all(ring.name(public(directory, "gpu7")) for _ in range(3))
    file = directory / "authorized" / "broken.pub"
    assert caplog.messages == [
        f"{file}: not a key file for this: it has no public-key; `trackside keys` creates them; no client can push with it"
    ]


def test_without_the_directory_of_clients_no_client_is_known(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = public(directory, "gpu7")
    ring = Keyring(directory)
    assert ring.name(known)
    (directory / "authorized").rename(directory / "away")
    assert not any(ring.name(known) for _ in range(3))
    assert caplog.messages == [f"{directory}/authorized: no such file or directory; no client can push with it"]
    (directory / "away").rename(directory / "authorized")
    assert ring.name(known)


def test_a_daemon_without_a_key_gets_an_error_that_explains_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError) as caught:
        Keyring(tmp_path)
    expected = f"{tmp_path}/daemon.key: no such file or directory; make it with: trackside keys {tmp_path}"
    assert str(caught.value) == expected


def test_a_daemons_key_that_others_may_read_is_refused(directory: Path) -> None:
    (directory / "daemon.key").chmod(0o644)
    with pytest.raises(
        KeyFileError, match=r"others may read it, and it is secret: chmod 600 .*daemon\.key; uid \d+, as"
    ):
        Keyring(directory)
