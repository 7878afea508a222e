"""A container of a Pod, as far as this machine can run one: with its users, groups, variables, flags and mounts.

Its root is that of this machine, read-only and with the mounts over it, in a separate mount and network namespace. It
also has a separate pid namespace, unless it has to see the node's processes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil
import pytest
from processes import DEADLINE, ROOT, eventually, http

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLONE_NEWNET = 0x40000000  # setns(2)
ISOLATED = ("unshare", "--mount", "--net", "--pid", "--fork")
LOOPBACK = "import fcntl, socket; fcntl.ioctl(socket.socket(), 0x8914, b'lo'.ljust(16, b'\\0') + b'\\x41\\0'.ljust(24, b'\\0'))"
"""SIOCSIFFLAGS with IFF_UP, since iproute2 may not be here."""


class User(NamedTuple):
    """User and groups of a container's process."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def possible() -> bool:
    """Return True if namespaces and overlays are allowed: as root, outside of a container with too few rights."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b && mount -t overlay -o lowerdir=/mnt/a:/ none /mnt/b"
    return subprocess.run([*ISOLATED, "sh", "-c", tried], check=False, capture_output=True).returncode == 0


def user(pod: Mapping[str, Any], container: Mapping[str, Any]) -> User:
    """Return the user of a container; a missing group is 0, as in Kubernetes."""
    found = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    return User(found["runAsUser"], found.get("runAsGroup", 0), tuple(found.get("supplementalGroups", ())))


def variables(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container; *fields* are the fields of the Pod that it refers to."""
    found: dict[str, str] = {}
    for one in container.get("env", ()):
        text = one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        # As the kubelet does: $(NAME) is a variable that stands before this one.
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda named: found.get(named[1], named[0]), text)
    return found


def mounts(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> dict[str, tuple[Path, bool]]:
    """Return the mount points of the volumes, and whether each is writable."""
    return {
        one["mountPath"]: (volumes[one["name"]], not one.get("readOnly", False))
        for one in container.get("volumeMounts", ())
    }


class Container:
    """A container that runs until it ends or is stopped.

    Args:
        place: An empty directory for its root.
        arguments: The command.
        session: The user of the command.
        environ: Its variables, in addition to those by which this Python finds its modules.
        volumes: The mounted paths, and whether they may be written.
        privileges: The flags of `setpriv` for its privileges, in addition to its user.
        host_pid: True if it sees the processes of this machine.
        beside: A container whose processes and network it shares.
    """

    def __init__(
        self,
        place: Path,
        arguments: Sequence[str],
        session: User,
        environ: Mapping[str, str],
        volumes: Mapping[str, tuple[Path, bool]],
        *,
        privileges: Sequence[str] = ("--bounding-set=-all", "--inh-caps=-all"),
        host_pid: bool = False,
        beside: Container | None = None,
    ) -> None:
        groups = f"--groups={','.join(map(str, session.groups))}" if session.groups else "--clear-groups"
        switch = [
            "setpriv",
            f"--reuid={session.uid}",
            f"--regid={session.gid}",
            groups,
            "--no-new-privs",
            *privileges,
            "--",
        ]
        steps = _root(place, volumes, proc=not host_pid)
        steps.append(f"exec chroot {place}/root {shlex.join([*switch, *arguments])}")
        namespaces = list(ISOLATED[:3] if host_pid else ISOLATED)
        if beside is not None:
            namespaces = ["nsenter", f"--target={beside.pid}", "--net", "--pid", "unshare", "--mount"]
        else:
            steps.insert(0, shlex.join([sys.executable, "-c", LOOPBACK]))
        self._process = subprocess.Popen(
            [*namespaces, "sh", "-c", "\n".join(["set -e", *steps])],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/", **environ},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process's, as this machine counts."""
        children = psutil.Process(self._process.pid).children()
        return children[0].pid if children and _is_wrapper(self._process.pid) else self._process.pid

    def ask(self, path: str) -> str:
        """Return a page, requested within the container's network; empty without a response of status 200."""
        if self._process.poll() is not None:
            pytest.fail(f"it has ended: {self.wait()}")
        with ThreadPoolExecutor(1) as thread:  # which alone enters the network, and ends
            return thread.submit(self._ask, path).result()

    def _ask(self, path: str) -> str:
        with suppress(OSError, httpx.TransportError), Path(f"/proc/{self._process.pid}/ns/net").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            answer = http.get(f"http://127.0.0.1:21790{path}")
            return answer.text if answer.status_code == 200 else ""
        return ""

    def answers(self, path: str) -> None:
        """Wait until a page is there."""
        eventually(lambda: self.ask(path))

    def has(self, *series: str) -> None:
        """Wait until /metrics has lines that begin so."""
        eventually(lambda: all(f"\n{one}" in self.ask("/metrics") for one in series))

    def send(self, number: int) -> None:
        """Send a signal to the process in the container."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> tuple[int, str]:
        """Wait for the end, and return exit status and output."""
        printed, _ = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, printed

    def kill(self) -> None:
        """End it, if it has not."""
        if self._process.poll() is None:
            for one in psutil.Process(self._process.pid).children(recursive=True):
                one.kill()
            self._process.kill()
        self._process.communicate(timeout=DEADLINE)


def _is_wrapper(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() in {"unshare", "nsenter"}


def _root(place: Path, volumes: Mapping[str, tuple[Path, bool]], *, proc: bool) -> list[str]:
    """Return the commands that create the root in a mount namespace; *proc* for a separate PID namespace."""
    root, points = place / "root", place / "points"
    needed = sorted({ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")})
    seen = {str(path): (path, False) for path in needed}
    seen.update({"/dev": (Path("/dev"), True), "/sys": (Path("/sys"), True), **volumes})
    made = shlex.join(f"{points}{path}" for path in ("/proc", *seen))
    steps = [
        f"mount -t tmpfs -o mode=755 none {place}",  # an overlay's layers may not be within each other
        f"mkdir -p {root} {made}",
        f"mount -t overlay -o lowerdir={points}:/ none {root}",
        f"mount -t proc none {root}/proc" if proc else f"mount --rbind /proc {root}/proc",
    ]
    for path, (source, writable) in sorted(seen.items()):
        steps.append(f"mkdir -p {root}{path}; mount --rbind {source} {root}{path}")  # the project may be in /tmp
        if not writable:
            steps.append(f"mount -o remount,bind,ro {root}{path}")
    return steps
