"""The listening port, and the errors when it cannot be used."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from certificate_authorities import Authority, hashed

from trackside_daemon.linux.socket_address import format_address
from trackside_daemon.web.http.address import AddressError, listen, security_warnings
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["127.0.0.1", "[::1]"])
def occupied(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield an address on which this process listens."""
    host: str = request.param
    with listen(f"{host}:0") as listener:
        yield f"{host}:{listener.getsockname()[1]}"


def refusal(address: str) -> str:
    with pytest.raises(AddressError) as caught:
        listen(address)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0", ":0", "0.0.0.0:0", "[::]:0"])
def test_an_address_is_listened_at_and_written_so_that_it_can_be_asked(address: str) -> None:
    with listen(address) as listener:
        host, _, port = format_address(listener).rpartition(":")
        assert ":" not in host or host[0] + host[-1] == "[]"
        socket.create_connection((host.strip("[]"), int(port))).close()


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "21790", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1", "[::1]"]
)
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    assert refusal(address) == f"web.listen-address: {address!r} is not HOST:PORT, such as 127.0.0.1:21790"


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "x..y:1", f"{'x' * 70}:1"])
def test_a_host_that_cannot_be_resolved_is_reported(address: str) -> None:
    assert refusal(address).startswith(f"web.listen-address: {address}: ")
    assert refusal(address).endswith("; give HOST:PORT of this machine")


def test_an_address_of_another_machine_is_reported() -> None:
    assert refusal("192.0.2.1:21790") == (
        "web.listen-address: 192.0.2.1:21790: cannot assign requested address; choose another"
    )


def test_an_occupied_port_is_answered_with_its_holder_and_with_a_free_one(occupied: str) -> None:
    host, _, port = occupied.rpartition(":")
    comm = Path("/proc/self/comm").read_text().strip()
    found = re.fullmatch(
        rf"web\.listen-address: {re.escape(occupied)} is in use by {re.escape(comm)} \(pid {os.getpid()}\); stop it, or use"
        rf" another port: --web\.listen-address={re.escape(host)}:(\d+)",
        refusal(occupied),
    )
    assert found is not None, refusal(occupied)
    assert int(found[1]) >= int(port) + 2, "the one in between may be the push port's"
    listen(f"{host}:{found[1]}").close()


def test_another_process_is_named_too() -> None:
    script = "import socket, sys\nwith socket.create_server(('127.0.0.1', 0)) as s:\n print(s.getsockname()[1], flush=True)\n input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        assert f"(pid {holder.pid})" in refusal(f"127.0.0.1:{port}")


def test_a_port_of_all_addresses_collides_with_one_of_them() -> None:
    with listen("127.0.0.1:0") as listener:
        port = listener.getsockname()[1]
        found = re.search(r"--web\.listen-address=0\.0\.0\.0:(\d+)$", refusal(f"0.0.0.0:{port}"))
    assert found is not None
    with listen(f"0.0.0.0:{found[1]}") as listener:
        assert format_address(listener) == f"0.0.0.0:{found[1]}"


def test_a_port_may_be_used_again_at_once() -> None:
    with listen("127.0.0.1:0") as listener:
        address = format_address(listener)
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()
    with listen(address) as listener:
        assert format_address(listener) == address


USERS = f"basic_auth_users: {{ada: '{hashed('x')}'}}\n"
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"
CLIENTS = "client_ca_file: ca.pem, client_auth_type: "
OPEN = "/metrics is open to all of them; users or client certificates in --web.config.file close it"
PLAIN = "passwords travel in plain text; tls_server_config in --web.config.file encrypts them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", OPEN),
        (f"{TLS}}}", OPEN),
        (f"{TLS}, {CLIENTS}VerifyClientCertIfGiven}}", OPEN),
        (USERS, PLAIN),
        (f"{TLS}}}\n{USERS}", ""),
        (f"{TLS}, {CLIENTS}RequireAndVerifyClientCert}}", ""),
    ],
    ids=[
        "open",
        "encrypted",
        "asked",
        "closed",
        "closed and encrypted",
        "certified",
    ],  # a hash is another one each time
)
@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.7:1", "127.0.0.1:1", "[::1]:1"])
def test_what_other_machines_reach_is_warned_of_unless_it_is_closed_and_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, text: str, message: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    Authority(tmp_path).issue("server")
    (tmp_path / "web.yml").write_text(text)
    reached = f"{address} can be reached from other machines, and {message}"
    expected = [reached] if message and "1]" not in address and "127" not in address else []
    assert list(security_warnings(address, ConfigFile(str(tmp_path / "web.yml")))) == expected


def test_without_a_web_configuration_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.partition(" and ")[2] for line in security_warnings("0.0.0.0:1", ConfigFile(""))][:1] == [OPEN]
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert list(security_warnings("127.0.0.1:1", ConfigFile(""))) == [
        "running as root, which trackside does not need; a dedicated user is safer"
    ]
