"""The web configuration of the real daemon: Debian's Prometheus scrapes by TLS, our commands ask, and strangers do not."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from certificate_authorities import Authority, hashed
from end_to_end.prometheus import Prometheus
from end_to_end.queries import SCRAPED
from processes import DEADLINE, clean_environ, command, eventually, lasting_daemon, run_here
from processes import start as start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import Daemon

QUIET = ("--no-collector.gpu", "--no-collector.process", "--no-collector.cgroup")
SAN = "prometheus.example.org"
PASSWORDS = {"prometheus": "scrape", "ada": "lovelace"}


class Secured:
    """A daemon with a web configuration, its authority, and that of its clients.

    Attributes:
        servers: The authority that signs the daemon's certificate.
        clients: The authority that signs the clients' certificates.
        file: The web configuration.
        daemon: The daemon, queried with the settings in *asking*.
    """

    def __init__(self, directory: Path, start: Callable[..., Daemon]) -> None:
        self.directory = directory
        self.servers = Authority(directory, "servers")
        self.clients = Authority(directory, "clients")
        self.servers.issue("server")
        self.client = self.clients.issue("client", SAN)
        self.file = directory / "web.yml"
        self._write()
        self.asking: dict[str, Any] = {"verify": self.servers.trust(self.client), "auth": ("ada", "lovelace")}
        self.daemon = start(f"--web.config.file={self.file}", *QUIET, asking=self.asking)

    def _write(self) -> None:
        tls = {
            "cert_file": "server.pem",
            "key_file": "server.key",
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": "clients.pem",
            "client_allowed_sans": [SAN],
        }
        users = {user: hashed(password) for user, password in PASSWORDS.items()}
        roles = {user: "metrics" if user == "prometheus" else "admin" for user in users}
        sections = {"tls_server_config": tls, "basic_auth_users": users, "basic_auth_roles": roles}
        self.file.write_text(json.dumps(sections))

    def scrape(self, user: str = "prometheus", password: str = "scrape", **tls: str) -> dict[str, Any]:
        """Return the scrape settings of Prometheus; empty values of *tls* are left out."""
        files = {name: str(path) for name, path in zip(("cert_file", "key_file"), self.client, strict=True)}
        given = {"ca_file": str(self.servers.file), **files, **tls}
        auth = {"basic_auth": {"username": user, "password": password}} if user else {}
        return {"scheme": "https", "tls_config": {name: one for name, one in given.items() if one}, **auth}

    def credentials(self, **auth: str) -> Path:
        """Write a file for --web.credentials-file, and return its path."""
        made = self.directory / "credentials.yml"
        cert, key = self.client
        tls = {"ca_file": self.servers.file.name, "cert_file": cert.name, "key_file": key.name}
        given = {"username": "ada", "password": "lovelace", **auth}
        made.write_text(json.dumps({"basic_auth": given, "tls_config": tls}))
        made.chmod(0o600)
        return made


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One for all tests, of which the last replaces the authority of the clients."""
    with ExitStack() as ends:
        yield Secured(
            tmp_path_factory.mktemp("secured"),
            lambda *given, **more: ends.enter_context(lasting_daemon(*given, **more)),
        )


def run(secured: Secured, *arguments: str) -> tuple[int, str]:
    """Run one of our commands; return its status and output."""
    done = run_here(*arguments, environ={"TRACKSIDE_ENDPOINT": secured.daemon.endpoint})
    return done.returncode, done.stdout + done.stderr


def test_our_commands_come_in_by_a_file_of_credentials(secured: Secured) -> None:
    file = f"--web.credentials-file={secured.credentials()}"
    imported = secured.directory / "run.csv"
    imported.write_text("step,loss\n1,0.5\n2,0.4\n")
    assert run(secured, file, "import", str(imported), "--name", "taken")[0] == 0
    assert "taken" in run(secured, "runs", file)[1]
    assert "taken" in run(secured, "runs", "--web.credentials-file", str(secured.credentials()))[1]
    assert "taken" in run(secured, "show", "taken", file)[1]
    assert run(secured, "export", "taken", file)[1].count("loss")
    assert run(secured, "alerts", file)[0] == 0
    assert run(secured, "silence", "LossSpike", "--for", "1h", file)[1].startswith("silence ")
    assert run(secured, "pause-gpu", file)[1].startswith("paused until")
    assert run(secured, "resume-gpu", file)[1] == "resumed\n"
    address = secured.daemon.url.removeprefix("https://")
    assert "taken" in run(secured, "runs", f"--url={address}", file)[1], "by TLS, since the file speaks of it"
    _, answered = run(secured, "test-alert", file)
    assert "TestAlert fires as alert " in answered, answered
    lines = run(secured, "doctor", file)[1].splitlines()
    assert lines[0].endswith(f" serves {secured.daemon.url}")
    assert re.fullmatch(rf"ok   certificate: that of {secured.daemon.url} is valid for \d+ days", lines[1])


def test_our_commands_name_what_is_missing(secured: Secured) -> None:
    url, directory = secured.daemon.url, secured.directory
    missing = "--web.credentials-file"
    code, answered = run(secured, "runs")
    assert (code, answered.count("\n")) == (2, 1)
    assert f"{url}: the daemon's certificate is not trusted: " in answered
    assert f"in a file for {missing}: tls_config: ca_file" in answered
    assert run(secured, "doctor")[1].startswith(f"FAIL daemon: {url}: the daemon's certificate is not trusted")

    file = directory / "c.yml"

    def with_file(text: str, mode: int = 0o600, *more: str) -> str:
        file.write_text(text)
        file.chmod(mode)
        code, answered = run(secured, "runs", f"{missing}={file}", *more)
        assert (code, answered.count("\n")) == (2, 1), answered
        return answered.removeprefix("trackside: ").rstrip("\n")

    tls = "ca_file: servers.pem, cert_file: client.pem, key_file: client.key"
    wants = f"{url}: the daemon closed the connection; it probably requires a client certificate: set one in {file}: tls_config: cert_file, key_file"
    assert with_file("tls_config: {ca_file: servers.pem}") == wants
    assert (
        with_file(f"tls_config: {{{tls}}}")
        == f"{url}: a user and a password are required; give a file with basic_auth: {missing}=FILE"
    )
    ada = "basic_auth: {username: ada, password: wrong}"
    assert with_file(f"tls_config: {{{tls}}}\n{ada}") == f"{url}: user 'ada' or the password in {file} is wrong"
    assert with_file(ada, 0o644) == f"{file}: contains a password that other users can read; run: chmod 600 {file}"
    assert with_file("basic_auth: {user: ada}").startswith(f"{file}: basic_auth.username: field required")
    assert with_file("bearer: x").startswith(f"{file}: bearer: no such key; ")
    assert (
        with_file("tls_config: {ca_file: absent}")
        == f"{file}: tls_config: absent: no such file or directory; give PEM files"
    )
    assert with_file("a: {").startswith(f"{file}: not YAML: line 1")
    named = with_file(f"tls_config: {{{tls}, server_name: elsewhere}}")
    assert named == f"{url}: the daemon's certificate is for another name; set that in {file}: tls_config: server_name"
    plain = with_file("{}", 0o600, f"--url={url.replace('https', 'http')}")
    assert (
        plain == f"{url.replace('https', 'http')}: the daemon closed the connection; it probably uses TLS: try https://"
    )
    (directory / "p").write_text("lovelace\n")
    (directory / "p").chmod(0o600)
    file.write_text(f"tls_config: {{{tls}}}\nbasic_auth: {{username: ada, password_file: p}}")
    assert run(secured, "runs", f"{missing}={file}")[0] == 0


def test_addresses_begin_with_https_and_the_link_needs_no_token(secured: Secured, place: Path) -> None:
    assert secured.daemon.url.startswith("https://")
    assert (secured.daemon.directory / "push.address").read_text() == f"{secured.daemon.url}\n"
    assert secured.daemon.get("/api/v1/status").json()["url"] == secured.daemon.url
    (secured.directory / "run").mkdir(mode=0o700)
    ours, theirs = os.openpty()
    flags = [
        f"--web.config.file={secured.file}",
        "--web.listen-address=127.0.0.1:0",
        f"--push.endpoint=ipc://{place}/other.sock",
        f"--storage.path={secured.directory}/run",
    ]
    with start_process(command("daemon", *QUIET, *flags), env=clean_environ(), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with os.fdopen(ours) as terminal:
            assert re.fullmatch(r"dashboard: https://127\.0\.0\.1:\d+/", terminal.readline().strip())
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0


def test_prometheus_is_refused_by_what_is_wrong_and_scrapes_while_certificates_and_their_authorities_rotate(
    secured: Secured, tmp_path: Path
) -> None:
    others = Authority(tmp_path, "others").issue("other", SAN)
    jobs = {
        "no password": secured.scrape(user=""),
        "no certificate": secured.scrape(cert_file="", key_file=""),
        "other authority": secured.scrape(cert_file=str(others[0]), key_file=str(others[1])),
        "plain": {"scheme": "http"},
        "untrusted daemon": secured.scrape(ca_file=str(secured.clients.file)),
    }
    prometheus = Prometheus(tmp_path, secured.daemon.url, jobs=jobs, **secured.scrape())
    targets: dict[str, tuple[str, str]] = {}

    def all_scraped() -> bool:
        found = prometheus.get("targets")["activeTargets"]
        targets.update({one["scrapePool"]: (one["health"], one["lastError"]) for one in found})
        return len(targets) == len(jobs) + 1 and all(health != "unknown" for health, _ in targets.values())

    def scraped_again() -> None:
        before = prometheus.value('count_over_time(up{job="trackside"}[1h])')
        eventually(lambda: prometheus.value('count_over_time(up{job="trackside"}[1h])') > before + 1, pause=SCRAPED)

    try:
        eventually(all_scraped, pause=SCRAPED)
        assert targets.pop("trackside") == ("up", "")
        assert {health for health, _ in targets.values()} == {"down"}
        assert targets["no password"][1] == "server returned HTTP status 401 Unauthorized"
        assert "certificate signed by unknown authority" in targets["untrusted daemon"][1]
        leaver = httpx.Client(base_url=secured.daemon.url, **secured.asking, trust_env=False, timeout=DEADLINE)
        assert leaver.get("/metrics").status_code == 200
        until = datetime(2040, 1, 2, tzinfo=timezone.utc)
        secured.servers.issue("server", "localhost", "127.0.0.1", "rotated.example.org", until=until)
        context = secured.servers.trust(secured.client)
        host, port = secured.daemon.url.removeprefix("https://").split(":")
        with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname="rotated.example.org"):
            scraped_again()
        assert prometheus.value("trackside_web_certificate_not_after_timestamp_seconds") == until.timestamp()
        old = secured.clients.file.read_bytes()
        new = Authority(secured.directory, "new")
        secured.clients.file.write_bytes(old + new.file.read_bytes())
        scraped_again()
        new.issue("client", SAN)
        scraped_again()
        secured.clients.file.write_bytes(new.file.read_bytes())
        with pytest.raises(httpx.TransportError):
            leaver.get("/metrics")
        leaver.close()
        scraped_again()
        assert prometheus.value('min_over_time(up{job="trackside"}[1h])') == 1
    finally:
        prometheus.stop()
