#!/usr/bin/env python3
"""Write the nodes of a Slurm cluster as targets for file_sd_configs of Prometheus. Needs sinfo and Python only.

The script replaces the file atomically, and only after sinfo answered: while Slurm is down, the old file stays.
While all nodes are powered down, the list is empty.

"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SINFO = ["sinfo", "--Node", "--noheader", "--format=%N|%o|%T"]
"""The node's name, its address, and its state."""

OFF = re.compile(r".*[~%]|power(ed|ing)?_down\W?", re.ASCII)
"""States of nodes that are powered down or powering down, which are no targets."""

QUIET = re.compile(r"(drain|maint|reboot|fail|powering_up)[a-z]*", re.ASCII)
"""States in which nobody is to be called: they are a label of the target, node_state, which only `up` keeps."""

FLAGS = {"$": "maint", "^": "reboot", "#": "powering_up"}
"""Last characters of other states in which nobody is to be called."""

SECONDS = 30
LABEL = re.compile(r"([A-Za-z_]\w*)=(.+)", re.ASCII)


class NoNodesError(Exception):
    """The list of nodes is not available; the message names the reason and the fix."""


def asked(partitions: list[str], nodes: str) -> str:
    """Return the output of sinfo.

    Raises:
        NoNodesError: sinfo is missing, takes too long, or fails.

    """
    chosen = [f"--partition={','.join(partitions)}"] if partitions else []
    chosen += [f"--nodes={nodes}"] if nodes else []
    try:
        done = subprocess.run([*SINFO, *chosen], capture_output=True, text=True, check=False, timeout=SECONDS)
    except FileNotFoundError:
        raise NoNodesError("sinfo is not on the PATH; run this on a machine with Slurm's commands") from None
    except subprocess.TimeoutExpired:
        raise NoNodesError(
            f"sinfo did not answer within {SECONDS} s; check the controller with scontrol ping"
        ) from None
    if done.returncode != 0 or done.stderr.strip():
        raise NoNodesError(f"sinfo: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}")
    return done.stdout


def quiet(state: str) -> str:
    """Return the state in which nobody is to be called; empty for a node in use, and for one that is down unexpectedly."""
    word = QUIET.match(state)
    if word is not None:
        return word[0]
    # A node in use that is to reboot, such as allocated@, works until it does.
    return "reboot" if state == "down@" else FLAGS.get(state[-1:], "")


def groups(printed: str, port: int, labels: dict[str, str]) -> list[dict[str, object]]:
    """Return one target group per node. A node in two partitions appears once; its name is the instance label.

    Raises:
        NoNodesError: There are no nodes, or sinfo printed something unexpected.

    """
    rows = [line.strip().split("|") for line in printed.splitlines() if line.strip()]
    for row in rows:
        if len(row) != 3:
            raise NoNodesError(f"sinfo printed {'|'.join(row)!r} instead of NAME|ADDRESS|STATE")
    if not rows:
        raise NoNodesError("sinfo lists no node; check the names of the partition and the nodes")
    found = {name: (address, quiet(state)) for name, address, state in rows if not OFF.fullmatch(state)}
    return [
        {
            "targets": [f"[{address}]:{port}" if ":" in address else f"{address}:{port}"],
            "labels": {"instance": name, **labels, **({"node_state": state} if state else {})},
        }
        for name, (address, state) in sorted(found.items())
    ]


def write(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader sees half of it.

    Raises:
        OSError: The file cannot be written.

    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def label(text: str) -> tuple[str, str]:
    """Parse a label, NAME=VALUE."""
    found = LABEL.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE, such as cluster=a")
    return found[1], found[2]


def number(text: str) -> int:
    """Parse a port."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r}: a port is between 1 and 65535")
    return int(text)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Write the nodes of a Slurm cluster as targets for Prometheus' file_sd_configs.",
        epilog="Example: file_sd.py --partition gpu --output /etc/prometheus/targets/trackside-slurm.json",
    )
    parser.add_argument(
        "--partition", action="append", default=[], metavar="NAME", help="only nodes of this partition; may be repeated"
    )
    parser.add_argument("--nodes", default="", metavar="LIST", help="only these nodes, in Slurm's notation: gpu[1-8]")
    parser.add_argument("--port", type=number, default=21790, help="the daemons' port (default 21790)")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        type=label,
        metavar="NAME=VALUE",
        help="a label for all targets; may be repeated",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to replace (default: standard output)")
    return parser.parse_args()


def main() -> int:
    """Query sinfo and write the file; return the exit status."""
    given = arguments()
    try:
        found = groups(asked(given.partition, given.nodes), given.port, dict(given.label))
        text = json.dumps(found, indent=1) + "\n"
        if given.output is None:
            sys.stdout.write(text)
        else:
            write(given.output, text)
    except NoNodesError as error:
        kept = f"; {given.output} is unchanged" if given.output is not None else ""
        sys.stderr.write(f"file_sd.py: {error}{kept}\n")
        return 1
    except OSError as error:
        sys.stderr.write(
            f"file_sd.py: {given.output}: {(error.strerror or str(error)).lower()}; choose another --output\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
