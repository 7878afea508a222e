"""Requirements of a key file, and the messages about a file that does not meet them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
import zmq

from trackside.environment import keys
from trackside.environment.keys import KeyFileError

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = (half.decode() for half in zmq.curve_keypair())
DAEMON = zmq.curve_keypair()[0].decode()
GOOD = f'# a comment\n\nsecret-key = "{SECRET}"\n  public-key="{PUBLIC}"\r\ndaemon-key = "{DAEMON}"\n'
ELSEWHERE = "tcp://192.0.2.1:21791"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A valid key file."""
    file = tmp_path / "gpu7.key"
    file.write_text(GOOD)
    file.chmod(0o600)
    return file


def refusal(file: Path | str, endpoint: str = ELSEWHERE) -> str:
    with pytest.raises(KeyFileError) as caught:
        keys.for_endpoint(endpoint, {"TRACKSIDE_KEY_FILE": str(file)})
    reported = str(caught.value)
    assert "\n" not in reported
    assert not any(key in reported for key in (SECRET, PUBLIC, DAEMON))
    return reported


@pytest.mark.parametrize("endpoint", [ELSEWHERE, "tcp://127.0.0.1:21791", "tcp://gpu7:1"])
def test_a_key_file_counts_for_every_port_also_of_this_machine(file: Path, endpoint: str) -> None:
    key = keys.for_endpoint(endpoint, {"TRACKSIDE_KEY_FILE": str(file)})
    assert key == keys.ClientKey(file, SECRET.encode(), PUBLIC.encode(), DAEMON.encode())


def test_a_unix_socket_needs_no_key_and_no_file_is_read() -> None:
    assert keys.for_endpoint("ipc:///run/trackside/push.sock", {"TRACKSIDE_KEY_FILE": "/no/such"}) is None


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.2:1", "localhost:1", "[::1]:65535"])
def test_this_machine_needs_none(address: str) -> None:
    assert keys.for_endpoint(f"tcp://{address}", {}) is None


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1:1", "0.0.0.0:1", "*:1", "[::]:1", "127.evil.org:1", "localhost.x:1", "127.0.0.1:1\n"),
        *("127.0.0.1:0;10.0.0.1:1", "127.0.0.1.example:1", "127.0.0.1@evil:1"),
    ],
)
def test_every_other_machine_needs_one(address: str) -> None:
    with pytest.raises(KeyFileError, match="pushing to another machine needs a key"):
        keys.for_endpoint(f"tcp://{address}", {})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(file: Path, mode: int) -> None:
    if os.getuid() == 0:
        os.chown(file, 12345, 12345)
    file.chmod(mode)
    assert refusal(file) == f"{file}: others may read it, and it is secret: chmod 600 {file}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root has files of its own")
def test_root_may_lend_a_key_to_a_group_and_to_no_other_user(file: Path) -> None:
    for mode in (0o400, 0o440):
        file.chmod(mode)
        assert keys.for_endpoint(ELSEWHERE, {"TRACKSIDE_KEY_FILE": str(file)}) is not None
    file.chmod(0o444)
    assert "others may read it" in refusal(file)


@pytest.mark.parametrize("name", ["secret-key", "public-key", "daemon-key"])
@pytest.mark.parametrize("spoilt", ["", '{} = "{:.38}"', '{} = "~{:.39}"', "{} = {}"])
def test_a_file_without_one_of_its_keys_is_no_key_file(file: Path, name: str, spoilt: str) -> None:
    (line,) = (line for line in GOOD.splitlines() if name in line)
    file.write_text(GOOD.replace(line, spoilt.format(name, line.split('"')[1])))
    assert refusal(file) == f"{file}: not a key file for this: it has no {name}; `trackside keys` creates them"


def test_halves_that_do_not_belong_together_are_refused(file: Path) -> None:
    for other in (DAEMON, "#" * 40):
        file.write_text(GOOD.replace(f'secret-key = "{SECRET}"', f'secret-key = "{other}"'))
        assert refusal(file) == f"{file}: its secret-key and its public-key do not belong together; copy the file again"


def test_what_is_not_a_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "image").write_bytes(os.urandom(2**20))
    (tmp_path / "image").chmod(0o600)
    assert refusal(tmp_path / "pipe") == f"{tmp_path}/pipe: not a regular file"
    assert refusal(tmp_path) == f"{tmp_path}: not a regular file"
    assert refusal("/dev/zero") == "/dev/zero: not a regular file"
    assert refusal(tmp_path / "none") == f"{tmp_path}/none: no such file or directory"
    assert refusal(tmp_path / "image").startswith(f"{tmp_path}/image: not a key file for this")
    assert "embedded null" in refusal("nul\0")


def test_the_secret_half_is_not_in_what_is_printed_of_a_key(file: Path) -> None:
    key = keys.for_endpoint(ELSEWHERE, {"TRACKSIDE_KEY_FILE": str(file)})
    assert SECRET not in repr(key)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
