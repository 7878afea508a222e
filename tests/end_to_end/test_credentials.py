"""A file of credentials for a daemon without users: it requires its token, which no other address receives."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from processes import lasting_daemon, run_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processes import Daemon

QUIET = ("--no-collector.gpu", "--no-collector.process", "--no-collector.cgroup")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests."""
    with lasting_daemon(*QUIET) as running:
        yield running


def ran(daemon: Daemon, *arguments: str) -> tuple[int, str]:
    """Run one of our commands; return its status and output."""
    done = run_here(*arguments, environ={"TRACKSIDE_ENDPOINT": daemon.endpoint})
    return done.returncode, done.stdout + done.stderr


def test_a_password_does_not_lock_out_of_a_daemon_that_has_no_users(daemon: Daemon, tmp_path: Path) -> None:
    imported, secret = tmp_path / "run.csv", tmp_path / "credentials.yml"
    imported.write_text("step,loss\n1,0.5\n2,0.4\n")
    secret.write_text("basic_auth: {username: ada, password: lovelace}")
    secret.chmod(0o600)
    file = f"--web.credentials-file={secret}"

    def output_of(*arguments: str) -> tuple[int, str]:
        return ran(daemon, *arguments, file)

    assert output_of("import", str(imported), "--name", "taken", f"--url={daemon.url}")[0] == 0
    assert "taken" in output_of("runs")[1]
    assert "taken" in output_of("runs", f"--url={daemon.url}")[1]
    assert output_of("silence", "LossSpike", "--for", "1h")[1].startswith("silence ")
    assert output_of("doctor")[1].splitlines()[0].endswith(f" serves {daemon.url}")
    token = daemon.directory / "push.token"
    known = token.read_text()
    token.write_text("stale\n")
    code, text = output_of("runs", f"--url={daemon.url}")
    token.write_text(known)
    assert (code, text.count("\n")) == (2, 1)
    assert "requires 'Authorization: Bearer TOKEN'" in text


@contextmanager
def stranger(status: int, body: bytes = b"", **headers: str) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the address of a server that answers every request alike, and its received Authorization headers."""
    received: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as other:
        serving = threading.Thread(target=other.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{other.server_port}", received
        finally:
            other.shutdown()
            serving.join()


def credentials(directory: Path, more: str = "") -> str:
    """Write a file with a password; return the flag for it."""
    secret = directory / "credentials.yml"
    secret.write_text(f"basic_auth: {{username: ada, password: lovelace}}\n{more}")
    secret.chmod(0o600)
    return f"--web.credentials-file={secret}"


def test_the_token_of_a_daemon_is_sent_to_no_other_address(daemon: Daemon, tmp_path: Path) -> None:
    with stranger(401, WWW_Authenticate="Bearer") as (url, received):
        code, _ = ran(daemon, "runs", f"--url={url}", credentials(tmp_path))
    assert code == 2
    assert received == ["Basic YWRhOmxvdmVsYWNl"]


def test_a_password_does_not_follow_a_redirect(daemon: Daemon, tmp_path: Path) -> None:
    with stranger(200, b"{}") as (second, received), stranger(302, Location=f"{second}/api/v1/runs") as (first, asked):
        code, answered = ran(daemon, "runs", f"--url={first}", credentials(tmp_path))
    assert (code, answered.count("\n")) == (2, 1)
    assert asked == ["Basic YWRhOmxvdmVsYWNl"]
    assert received == []


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"runs": 3}', b"no JSON"])
def test_a_server_that_answers_and_is_no_daemon_is_named_in_one_line(daemon: Daemon, body: bytes) -> None:
    with stranger(200, body) as (url, _):
        code, answered = ran(daemon, "runs", f"--url={url}")
    assert (code, answered.count("\n")) == (2, 1)
    assert url.removeprefix("http://") in answered


def test_a_password_for_tls_is_not_sent_without_tls(daemon: Daemon, tmp_path: Path) -> None:
    code, answered = ran(
        daemon, "runs", "--url=http://192.0.2.1:1", credentials(tmp_path, "tls_config: {server_name: gpu1}")
    )
    assert (code, answered.count("\n")) == (2, 1)
    assert "http://192.0.2.1:1" in answered
    assert "only https:// addresses are allowed" in answered
