"""The process that reads the room of file systems that may hang: ``python -I -S remote_worker.py PARENT``.

It writes ``ready`` when it accepts requests. A request is a path in hexadecimal digits, as a line on stdin. The answer is
a line on stdout: the numbers of `NUMBERS`, or a single errno. The process ends with its input and with its parent, a
process id.
"""

# Import as little as possible: this process starts where memory is scarce, and stays as long as its file system is dead.
import os
import sys

NUMBERS = ("f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
SIGKILL = 9  # other signals do not end a process that inherits them blocked; the module `signal` imports much


def main(parent: int) -> int:
    """Answer requests until the input ends; return the exit status."""
    _end_with_parent(parent)
    os.write(1, b"ready\n")
    for request in sys.stdin.buffer:
        os.write(1, _answer(bytes.fromhex(request.decode())).encode() + b"\n")
    return 0


def _end_with_parent(parent: int) -> None:
    # -I leaves the package's directory out of the path; add it last, so that nothing in it shadows the standard library.
    sys.path.append(os.path.abspath(__file__).rsplit("/trackside_daemon/", 1)[0])  # noqa: PTH100  pathlib imports much
    from trackside_daemon.linux.signals import end_with_parent

    end_with_parent(parent, SIGKILL)


def _answer(path: bytes) -> str:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return str(error.errno)
    return " ".join(str(getattr(room, name)) for name in NUMBERS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
