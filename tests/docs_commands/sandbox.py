"""A place where the commands of a page run unchanged: a daemon with runs, Prometheus, and a separate /etc."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
from bridges.directories import events, file_name
from end_to_end.shipped import Shipped, shipped
from processes import DEADLINE, ROOT, Daemon, clean_environ, command, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURATION = "alerts: {thresholds: {gpu-hot-margin-celsius: 8}}\n"
TRAINING = """
import itertools, math, sys, time, trackside
run = trackside.init(tags=["baseline"], parameters=1e6, peak_flops=1e12)
batches = run.data(itertools.repeat(1))
for step in itertools.count(1) if len(sys.argv) > 1 else range(1, 41):
    for batch in itertools.islice(batches, 1):
        for phase in ("forward", "backward", "all_reduce", "optimizer"):
            with run.phase(phase):
                time.sleep(0.002)
    run.push(step=step, loss=1 + 1 / step if step % 40 else math.nan, grad_norm=1.0, lr=1.0, tokens=512, samples=1)
    if step == 40:
        print("pushed", flush=True)
    time.sleep(0.5 if step > 40 else 0)
"""


class Sandbox:
    """A daemon, its runs, Prometheus and the configuration, as a context manager.

    Args:
        place: A directory with a short path, for sockets, that no other user may enter.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("trackside", "home", "bin", "other", "etc/trackside"):
            (place / name).mkdir(parents=True, mode=0o700)
        script = f'#!/bin/sh\nexec {sys.executable} -m trackside_daemon "$@"\n'
        (place / "bin" / "trackside").write_text(script)
        (place / "bin" / "trackside").chmod(0o755)
        (place / "bin" / "sudo").write_text('#!/bin/sh\nexec "$@"\n')  # the sandbox's /etc is this user's
        (place / "bin" / "sudo").chmod(0o755)
        events(place / "runs" / "exp1" / file_name(), range(100))
        shutil.copytree(ROOT / "deploy", place / "deploy")
        shutil.copytree(ROOT / "deploy" / "prometheus", place / "etc" / "prometheus")
        (place / "etc" / "trackside" / "trackside.yml").write_text(CONFIGURATION)
        (place / "trackside.yml").write_text(CONFIGURATION)
        with ExitStack() as ends:
            prices = {"TRACKSIDE_COST__GPU_HOUR": "*=2", "TRACKSIDE_COST__CURRENCY": "EUR"}
            self.daemon = Daemon(place / "trackside", "--collector.gpu.simulate=2", environ=self._environ(prices))
            ends.callback(self.daemon.stop)
            self._train("gpt-wide")
            self._train("gpt-small", ends)
            self.prometheus = self._prometheus()
            ends.callback(self.prometheus.stop)
            self._ends = ends.pop_all()

    def __enter__(self) -> Sandbox:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def run(self, text: str, page: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a page in bash, to its end."""
        directory = self.place / Path(page).parent if page.startswith("deploy/") else self.place
        text = self.placed(text)
        if (alone := _alone(text)) is not None:
            return processes.run(alone, cwd=directory, env=self._environ())
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=directory,
            env=self._environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )

    def serve(self, text: str) -> None:
        """Start a daemon, wait until it serves, and end it."""
        apart = {
            "XDG_RUNTIME_DIR": str(self.place / "other"),
            "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0",
            "TRACKSIDE_STORAGE__PATH": str(self.place / "other"),
        }
        with (self.place / "other" / "log").open("w+") as log:
            alone, shell = _alone(self.placed(text)), ["bash", "-c", f"exec {self.placed(text)}"]
            begin: Any = processes.start if alone else subprocess.Popen
            started = begin(alone or shell, cwd=self.place, env=self._environ(apart), stdout=log, stderr=log)
            try:
                eventually(lambda: started.poll() is not None or "serves http" in self._log())
                assert started.poll() is None, self._log()
            finally:
                started.terminate()
                started.wait(DEADLINE)

    def placed(self, text: str) -> str:
        """Return the command with the addresses and directories of the sandbox, and a run in place of the name RUN."""
        here = {
            "127.0.0.1:21790": self.daemon.url.removeprefix("http://"),
            "127.0.0.1:9090": self.prometheus.url.removeprefix("http://"),
            "tcp://0.0.0.0:21791": f"tcp://127.0.0.1:{_free_port()}",
            "/run/user/$UID": str(self.place),
            "/run/user/$(id -u)": str(self.place),
            "~/trackside/bin/": "",
            "/etc/": f"{self.place}/etc/",
            "runs/RUN/": "runs/gpt-small-1/",
        }
        for written, meant in here.items():
            text = text.replace(written, meant)
        return text

    def _environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        programs = os.pathsep.join((str(self.place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        own = {"HOME": str(self.place / "home"), "XDG_RUNTIME_DIR": str(self.place), "PATH": programs}
        if paths := [str(ROOT / path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]:
            own["PYTHONPATH"] = os.pathsep.join(paths)
        return clean_environ({**own, **(more or {})})

    def _log(self) -> str:
        return (self.place / "other" / "log").read_text()

    def _train(self, name: str, ends: ExitStack | None = None) -> None:
        """Train to the end, or until *ends*."""
        about = {
            "TRACKSIDE_RUN_NAME": name,
            "TRACKSIDE_RUN_ID": f"{name}-1",
            "TRACKSIDE_ENDPOINT": self.daemon.endpoint,
            "LOCAL_RANK": "0",
        }
        training = processes.start(
            [sys.executable, "-c", TRAINING, *(["on"] if ends is not None else [])],
            env=self._environ({**about, "CUDA_VISIBLE_DEVICES": "0"}),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert training.stdout is not None
        if ends is None:
            training.communicate(timeout=DEADLINE)
        else:
            ends.enter_context(training)
            ends.callback(training.kill)
            assert training.stdout.readline() == "pushed\n"

    def _prometheus(self) -> Shipped:
        [job] = shipped("prometheus.yml")["scrape_configs"]
        job["static_configs"] = [{"targets": [self.daemon.url.removeprefix("http://")]}]
        found = Shipped(
            self.place / "prometheus",
            "prometheus.yml",
            f"--storage.tsdb.path={self.place / 'prometheus' / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--web.enable-lifecycle",
            scrape_configs=[job],
        )
        found.shows("up", 1)
        return found


def _alone(text: str) -> list[str] | None:
    """Return a command of trackside that needs no shell, else None."""
    program, *arguments = shlex.split(text)
    return command(*arguments) if program == "trackside" and not set(text) & set("|&;<>$~") else None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
