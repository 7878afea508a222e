"""A name that a page has pointed to this address (DNS rebinding) reads nothing of a daemon on loopback."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon


def status(daemon: Daemon, host: str) -> int:
    return daemon.get("/metrics", Host=host).status_code


def test_metrics_answer_under_no_foreign_name(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--no-collector.gpu", "--web.allowed-hosts=box")
    machine = socket.gethostname()
    own = ["127.0.0.1:9", "[::1]:21790", "192.0.2.7:21790", "LOCALHOST", machine, machine.partition(".")[0], "box:80"]
    assert {host: status(daemon, host) for host in own} == dict.fromkeys(own, 200)
    foreign = ["evil.com", "evil.com:21790", f"{machine}.evil.com", "127.0.0.1.evil.com", "localhost.evil.com"]
    foreign += [
        "[::1].evil.com",
        "[::1]evil.com:80",
        "localhost:1@evil.com",
        "localhost:evil.com",
        "127.0.0.1:1:2",
        "[evil.com]",
    ]
    assert {host: status(daemon, host) for host in foreign} == dict.fromkeys(foreign, 421)
    key = {"Authorization": f"Bearer {(daemon.directory / 'push.token').read_text().strip()}"}
    expected = dict.fromkeys(foreign, 421) | {"localhost:9": 200, "[::1]": 200, "box": 200}
    assert {host: daemon.get("/api/v1/status", Host=host, **key).status_code for host in expected} == expected
    # Probes of load balancers send any name, and an old one sends none.
    assert daemon.get("/-/healthy", Host="evil.com").status_code == 200
    port = int(daemon.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_where_other_machines_scrape_any_name_is_served(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--no-collector.gpu", "--web.listen-address=0.0.0.0:0")
    daemon.url = daemon.url.replace("0.0.0.0", "127.0.0.1")
    assert status(daemon, "gpu7.cluster.example") == 200
