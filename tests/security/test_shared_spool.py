"""A spool directory that several users share: only the daemon reads a spool of another user, and it has no secrets.

Users and groups are unused numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from client.messages import CLOCK, forget_process_info, push
from processes import DEADLINE, ROOT, clean_environ
from unprivileged_users import launcher

from trackside.redact import REDACTED, redact_json
from trackside.transport.orphaned_spool import orphaned_hellos
from trackside.transport.session import Session
from trackside.transport.spool_access import acquire_lock, share
from trackside.wire import Hello, Identity, TrainingAlert, TrainingEvent, decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAEMON, TRAINER, MEMBER = 61001, 61002, 61003
SHARED = 61100

SECRETS = [
    "hunter2pass",
    "s3cr3tpw",
    "0123456789abcdef0123456789abcdef01234567",
    "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ1234567",
]
CONFIG = {"wandb": {"api_key": SECRETS[2]}, "db": f"postgres://u:{SECRETS[0]}@h/db", "lr": 0.5}

TRAINING = f"""
import trackside
run = trackside.init(name="shared", config={CONFIG!r}, tags=["{SECRETS[3]}", "good"])
run.push(step=1, loss=0.5)
run.event("note", password="{SECRETS[1]}", kept="kept-field")
run.alert("token {SECRETS[3]}", "see --password {SECRETS[1]}")
run.finish()
"""

ATTACK = """
import os, sys
for name in sorted(os.listdir(sys.argv[1])):
    path = os.path.join(sys.argv[1], name)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND, os.O_RDWR):
        try:
            os.close(os.open(path, flags))
            print("opened", name, flags)
        except PermissionError:
            pass
    try:
        os.unlink(path)
        print("deleted", name)
    except PermissionError:
        print("closed", name.rpartition(".")[2])
"""

READ = """
import sys
from pathlib import Path
from trackside.transport.orphaned_spool import orphaned_hellos, orphaned_sessions
print([hello.identity.name for _, hello, _ in orphaned_hellos([Path(sys.argv[1])], None)])
print([session.name for session in orphaned_sessions([Path(sys.argv[1])], None)])
"""

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


def run_as(user: int, *arguments: str, **environ: str) -> str:
    """Return what Python prints as a user in the shared group."""
    command = [*launcher(user, SHARED), sys.executable, *arguments]
    environment = clean_environ(environ)
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def shared(place: Path) -> Path:
    """A spool directory as the systemd unit makes it."""
    place.chmod(0o755)
    directory = place / "shared"
    directory.mkdir()
    os.chown(directory, DAEMON, SHARED)
    directory.chmod(0o3770)
    return directory


@needs_users
def test_only_the_daemon_reads_what_a_member_of_the_group_leaves(place: Path, shared: Path) -> None:
    secrets = ["--password", SECRETS[1], f"--db=postgres://u:{SECRETS[0]}@h/db", f"HF_TOKEN={SECRETS[3]}"]
    endpoint = f"ipc://{place}/nobody.sock"
    run_as(TRAINER, "-c", TRAINING, *secrets, TRACKSIDE_SPOOL=str(shared), TRACKSIDE_ENDPOINT=endpoint)
    left = b"".join(path.read_bytes() for path in shared.iterdir())
    assert b"kept-field" in left
    assert b"good" in left
    assert [secret for secret in SECRETS if secret.encode() in left] == []
    assert run_as(MEMBER, "-c", ATTACK, str(shared)).split("\n")[:-1] == ["closed spool", "closed lock"]
    assert run_as(MEMBER, "-c", READ, str(shared)) == "[]\n[]\n"
    assert run_as(DAEMON, "-c", READ, str(shared)) == "['shared']\n['shared']\n"


@needs_users
def test_without_access_control_lists_the_spool_stays_the_users_own(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    session = Session(Identity("run", "name"), spool=shared)
    push(session, {"loss": 1.0}, 1)
    session.drain(CLOCK)
    session.retire(CLOCK)
    assert {path.stat().st_mode & 0o777 for path in shared.iterdir()} == {0o600}


@needs_users
def test_a_lock_that_leads_to_another_file_of_the_user_opens_it_to_no_other(place: Path, shared: Path) -> None:
    private = place / "private"
    private.touch(0o600)
    lock = shared / f"{'ab' * 16}.lock"
    os.link(private, lock)
    file = acquire_lock(lock)
    share(file, shared)
    os.close(file)
    assert private.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command line with secrets."""
    forget_process_info()
    monkeypatch.setattr(sys, "orig_argv", ["python", "t.py", "--password", SECRETS[1], f"--key={SECRETS[3]}", "--lr=1"])
    yield
    forget_process_info()


def test_neither_the_spool_nor_a_message_has_a_secret(spool: Path, command: None) -> None:
    session = Session(Identity("run", "name"), json.dumps(CONFIG), (SECRETS[3], "good"), spool=spool)
    session.rows.append((1, TrainingEvent("note", 1, fields=json.dumps({"password": SECRETS[1], "kept": 1})), None))
    session.rows.append((2, TrainingAlert(f"token {SECRETS[3]}", 2, f"see --password {SECRETS[1]}"), None))
    push(session, {"loss": 1.0}, 1)
    session.drain(CLOCK)
    session.end(CLOCK, "failed", f"RuntimeError: password={SECRETS[0]}", provisional=False)
    messages = [session.hello(CLOCK), *(message.frames for message in session.pending)]
    session.retire(CLOCK)
    written = [path.read_bytes() for path in spool.glob("*.spool")]
    sent = b"".join(frame for frames in messages for frame in frames) + b"".join(written)
    assert written
    assert [secret for secret in SECRETS if secret.encode() in sent] == []
    ((_, hello, _),) = orphaned_hellos([spool], None)
    assert json.loads(hello.config) == {
        "wandb": {"api_key": REDACTED},
        "db": f"postgres://u:{REDACTED}@h/db",
        "lr": 0.5,
    }
    assert hello.about is not None
    assert hello.about.command == ("python", "t.py", "--password", REDACTED, f"--key={REDACTED}", "--lr=1")
    assert hello.tags == (REDACTED, "good")


def test_a_configuration_that_comes_later_is_redacted_too(spool: Path) -> None:
    session = Session(Identity("run", "name"), '{"lr": 1.0}', spool=spool)

    def config() -> str:
        body = decode_body("hello", session.hello(CLOCK)[2])
        assert isinstance(body, Hello)
        return body.config

    assert config() == '{"lr": 1.0}'
    session.describe(json.dumps({"password": SECRETS[0], "lr": 2}))
    assert json.loads(config()) == {"password": REDACTED, "lr": 2}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "9" * 10_000, "\ud800"])
def test_text_that_is_not_json_is_not_sent(text: str) -> None:
    assert redact_json(text) == '"not JSON"'
