"""ptrace.conf: with its capability, the filter of the unit still keeps the daemon out of the memory of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from deploy.pod import possible
from processes import DEADLINE, ROOT
from unprivileged_users import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not possible(), reason="needs root, to start processes of two users")

USER = 61021
CONFINED = [sys.executable, str(ROOT / "tests/deploy/confine.py"), str(ROOT / "deploy/systemd/trackside.service")]
SECRET = "the secret of root"

VICTIM = f"""
import ctypes, sys
memory = ctypes.create_string_buffer({SECRET!r}.encode())
print(ctypes.addressof(memory), flush=True)
sys.stdin.readline()
print(memory.value.decode(), flush=True)
"""

ATTACKER = """
import ctypes, errno, json, os, struct, sys
pid, address, length = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
number = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name
own = ctypes.create_string_buffer(b"X" * length, length)
local, remote = (ctypes.create_string_buffer(struct.pack("PN", at, length)) for at in (ctypes.addressof(own), address))
results = {}

def call(name, *values):
    done = libc.syscall(ctypes.c_long(number(name.encode())), *map(ctypes.c_long, values))
    results[name] = errno.errorcode[ctypes.get_errno()] if done < 0 else "allowed"
    return done

pidfd = os.pidfd_open(pid)
at = ctypes.addressof
call("process_vm_writev", pid, at(local), 1, at(remote), 1, 0)
call("process_vm_readv", pid, at(local), 1, at(remote), 1, 0)
call("process_madvise", pidfd, at(remote), 1, 20, 0)  # MADV_COLD
call("pidfd_getfd", pidfd, 0, 0)
call("kcmp", os.getpid(), pid, 1, 0, 0)  # KCMP_VM
attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 1).ljust(112, b"\\0"))  # PERF_TYPE_SOFTWARE, task clock
call("perf_event_open", at(attributes), pid, -1, -1, 0)
if call("ptrace", 0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
    os.waitpid(-1, os.WNOHANG)
for name in ("mem", "environ", "io", "fd", "map_files", "maps"):
    try:
        path = f"/proc/{pid}/{name}"
        os.listdir(path) if name in ("fd", "map_files") else os.close(os.open(path, os.O_RDONLY))
        results[name] = "allowed"
    except OSError as error:
        results[name] = errno.errorcode[error.errno]
print(json.dumps(results))
"""

CALLS = (
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "pidfd_getfd",
    "kcmp",
    "perf_event_open",
    "ptrace",
)


@pytest.fixture
def victim() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of root with a secret in its memory, and the address of the secret."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", VICTIM], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def attack(victim: tuple[subprocess.Popen[str], int], *confined: str) -> dict[str, str]:
    """Return what each call and each file of /proc gives to the user of the daemon, with the capability of ptrace.conf."""
    process, address = victim
    code = [sys.executable, "-c", ATTACKER, str(process.pid), str(address), str(len(SECRET))]
    full = [*launcher(USER, capability="sys_ptrace"), *confined, *code]
    done = subprocess.run(full, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def memory(victim: tuple[subprocess.Popen[str], int]) -> str:
    """Return what the victim has in its memory at last."""
    return victim[0].communicate("\n", timeout=DEADLINE)[0].strip()


def test_no_system_call_reaches_the_memory_of_root_through_the_filter(
    victim: tuple[subprocess.Popen[str], int],
) -> None:
    results = attack(victim, *CONFINED)
    assert {name: results[name] for name in CALLS} == dict.fromkeys(CALLS, "EPERM")
    assert memory(victim) == SECRET


def test_without_the_filter_the_capability_writes_the_memory_of_root(
    victim: tuple[subprocess.Popen[str], int],
) -> None:
    """Show that the calls of the test above do what they are meant to do."""
    results = attack(victim)
    assert {results["process_vm_readv"], results["process_vm_writev"]} == {"allowed"}
    assert memory(victim) == "X" * len(SECRET)


def test_files_of_proc_are_those_that_the_comment_of_the_drop_in_lists(
    victim: tuple[subprocess.Popen[str], int],
) -> None:
    results = attack(victim, *CONFINED)
    denied = ("mem", "environ", "io", "fd", "map_files")
    assert {name: results[name] for name in denied} == dict.fromkeys(denied, "EACCES")
    assert results["maps"] == "allowed"
