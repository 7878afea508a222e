"""The environment of trainings: for tested versions of PyTorch alone, and never over what the user has set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import clean_environ

from trackside.captures.kineto import TESTED, variables
from trackside_daemon.captures.kineto.environment import interpreter, missing_variables, torch_version
from trackside_daemon.captures.kineto.socket_file import DIRECTORY_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.captures.kineto.profiler_socket import ProfilerSocket

PYTHON = sys.executable


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of a PyTorch for every Python that is started, of a tested version at first."""
    metadata = tmp_path / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    install(metadata, f"{TESTED[0]}.1+cpu")
    return metadata


def install(metadata: Path, version: str) -> None:
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


def test_a_tested_version_gets_the_variables(profiler: Path, served: ProfilerSocket, installed: Path) -> None:
    assert missing_variables(profiler, [PYTHON, "train.py"], {}) == variables(profiler)
    assert missing_variables(profiler, ["sh", "train.sh"], {}) == {}


@pytest.mark.parametrize("version", ["2.1.0", "2.4.1", "2.7.1+cu126", "3.0.0", "20.10.0"])
def test_another_version_is_left_alone(version: str, profiler: Path, served: ProfilerSocket, installed: Path) -> None:
    install(installed, version)
    assert torch_version(PYTHON) == version
    assert missing_variables(profiler, [PYTHON, "train.py"], {}) == {}


def test_what_the_user_has_set_stays(profiler: Path, served: ProfilerSocket, installed: Path) -> None:
    assert missing_variables(profiler, [PYTHON], {"KINETO_USE_DAEMON": "1"}) == {}
    assert missing_variables(profiler, [PYTHON], {"KINETO_IPC_SOCKET_DIR": "/run/dynolog"}) == {}
    assert "KINETO_LOG_LEVEL" not in missing_variables(profiler, [PYTHON], {"KINETO_LOG_LEVEL": "0"})


def test_without_a_socket_nothing_is_set(profiler: Path, installed: Path) -> None:
    assert missing_variables(profiler, [PYTHON], {}) == {}


def test_a_script_of_python_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    python = program("python3.99", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert interpreter("python3.99") == python
    assert interpreter(program("torchrun", f"#!{python}\nimport sys\n")) == python
    assert interpreter(program("accelerate", "#!/usr/bin/env python3.99\n")) == python
    assert interpreter(program("train.sh", "#!/bin/sh\npython train.py\n")) == ""
    assert interpreter(program("binary", "\x7fELF")) == ""
    assert interpreter("no-such-program") == ""


def test_libkinetos_own_socket_fits_into_an_address() -> None:
    uuid = "01234567-0123-4012-8012-012345678901"
    assert len(f"{'d' * DIRECTORY_BYTES}/dynoconfigclient{uuid}\0") == 108


def exported(endpoint: Path, **more: str) -> tuple[str, str]:
    """Return what the client prints for shells, and why it prints nothing."""
    environ = clean_environ({"TRACKSIDE_ENDPOINT": f"ipc://{endpoint}", **more})
    done = subprocess.run([PYTHON, "-m", "trackside.captures"], env=environ, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_the_client_prints_the_variables_for_a_shell_or_why_there_are_none(
    place: Path, profiler: Path, served: ProfilerSocket, installed: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as push:
        push.bind(str(place / "push.sock"))
        push.listen()
        printed, _ = exported(place / "push.sock")
        assert dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines()) == variables(profiler)
        assert exported(place / "push.sock", KINETO_USE_DAEMON="1") == (
            "",
            "trackside: KINETO_USE_DAEMON is set already\n",
        )
        install(installed, "2.4.0")
        assert exported(place / "push.sock")[1].startswith("trackside: PyTorch 2.4.0 is left alone")
        install(installed, f"{TESTED[0]}.1")
    assert exported(place / "other.sock") == ("", "trackside: no daemon of this user on this machine serves PyTorch\n")
