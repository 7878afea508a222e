"""deploy/Dockerfile without an engine: the commands of its build, and their result, run as in a container."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deploy.pod import possible
from end_to_end import dockerfile
from processes import DEADLINE, clean_environ, eventually
from unprivileged_users import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 300.0
"""Seconds for what builds and installs."""

HOME = "/opt/trackside"
"""Where the image has it."""

STAGE = """set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
cp -a /etc /run/etc && mount --bind /run/etc /etc
{run}
mount -o remount,ro,bind /
python3 -c 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))'
exec "$@"
"""
"""A root that is read-only but for the volumes, with the image's user; a network of its own whose loopback is up."""


def ran(program: str) -> str:
    """Return the RUN instruction that calls a program."""
    [run] = [one.rest for one in dockerfile.instructions() if one.name == "RUN" and program in one.rest]
    return run


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The result of the first build stage, made in another directory."""
    if not request.config.getoption("--soak"):
        pytest.skip("the build of the image takes seconds of a processor: under --soak")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        place.chmod(0o755)
        context, made = place / "context", place / "trackside"
        dockerfile.copy_context(context)
        # This Python's pip, uncompiled files and no second pip save half of the CPU time.
        python = shlex.quote(sys.executable)
        steps = ran("pip")
        for home, local in ((HOME, made), ("/opt/build", place / "build")):
            steps = steps.replace(f"python -m venv {home}", f"{python} -m venv --without-pip {local}")
            steps = steps.replace(f"{home}/bin/pip", f"{python} -m pip --python {local}/bin/python")
            steps = steps.replace(f"{home}/bin/python", f"{local}/bin/python")
        environ = {name: text for name, text in clean_environ().items() if not name.startswith("PYTHON")}
        environ["PIP_COMPILE"] = "0"
        ended = subprocess.run(
            ["sh", "-ec", steps],
            cwd=context,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        yield made


@pytest.fixture
def contained(built: Path) -> Iterator[subprocess.Popen[str]]:
    """The ENTRYPOINT and CMD as process 1, of the image's user, with the image's variables."""
    user = dockerfile.last("USER").partition(":")[0]
    environ = dockerfile.environ() | {"PATH": f"{built}/bin:{os.environ['PATH']}", "HOME": "/nonexistent"}
    alone = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    stage = [*alone, "sh", "-c", STAGE.format(run=ran("useradd")), "sh"]
    what = [*dockerfile.command("ENTRYPOINT"), *dockerfile.command("CMD")]
    process = subprocess.Popen(
        [*stage, *launcher(int(user)), *what], env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    yield process
    process.kill()
    process.wait(DEADLINE)
    assert process.stderr is not None
    process.stderr.close()


def first(process: subprocess.Popen[str]) -> int:
    """Return the pid, outside the container, of the container's process 1."""
    [pid] = eventually(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text).split()
    return int(pid)


def inside(process: subprocess.Popen[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the container, as root."""
    enter = ["nsenter", f"--target={first(process)}", "--mount", "--pid", "--net"]
    return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_two_stages_and_what_a_registry_shows() -> None:
    found = dockerfile.instructions()
    bases = [one.rest.split()[0] for one in found if one.name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1  # the environment's python is the same one in both
    assert re.fullmatch(r"python:\$\{PYTHON\}-slim-[a-z]+\$\{DIGEST\}", bases[0])
    python, digest = (one.rest for one in found if one.name == "ARG")
    assert re.fullmatch(r"PYTHON=3\.\d+", python)
    assert digest == "DIGEST="
    labels = dict(pair.split("=", 1) for pair in shlex.split(dockerfile.last("LABEL")))
    assert labels.keys() >= {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses")}
    assert dockerfile.last("EXPOSE") == "21790"
    assert dockerfile.environ()["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert dockerfile.environ()["TRACKSIDE_WEB__LISTEN_ADDRESS"].endswith(":21790")


@pytest.mark.skipif(not possible(), reason="needs root and mount namespaces (CAP_SYS_ADMIN)")
def test_the_daemon_runs_as_user_65534_on_a_read_only_root(contained: subprocess.Popen[str]) -> None:
    python = sys.executable
    check = [python, *dockerfile.command("HEALTHCHECK")[1:]]
    eventually(lambda: contained.poll() is not None or inside(contained, *check).returncode == 0)
    assert contained.poll() is None, contained.communicate()[1]
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:21790/metrics').read().decode())"
    page = inside(contained, python, "-c", ask).stdout
    assert "\ntrackside_build_info{" in page
    status = inside(contained, "cat", "/proc/1/status").stdout
    assert "\nUid:\t21790\t21790\t21790\t21790\n" in status
    assert "Read-only" in inside(contained, "touch", "/x").stderr
    places = inside(contained, "sh", "-c", "ls /run/trackside /var/lib/trackside").stdout.split()
    assert {"push.sock", "push.token", "history.db"} <= set(places)
    os.kill(first(contained), signal.SIGTERM)
    assert contained.wait(DEADLINE) == 0, contained.communicate()[1]
