"""Each of these rules has one place in the product."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PRODUCT = [Path(__file__).parents[2] / folder for folder in ("client/trackside", "daemon/trackside_daemon")]

PLACES = {
    "the nearest name to an unknown one": (r"get_close_matches", {"config/near.py"}),
    "a value that pydantic refuses, in one line": (
        r"\.errors\(\)\[0\]\[|removeprefix\(.Value error",
        {"config/near.py"},
    ),
    # NVML and file systems that hang have workers with protocols of their own: signs of life, and an idle one in reserve.
    "a request to a process of our own": (
        r"\bWorkerProcess\(",
        {"linux/worker_call.py", "nvml/handle/handle.py", "collectors/host/filesystem/remote_workers.py"},
    ),
    "the limits of a process of our own": (
        r"\blimit_(this_process|time)\(",
        {"linux/worker_call.py", "linux/process_limits.py"},
    ),
    "the memory of a process of our own": (r"\b512 ?<< ?20\b", {"linux/process_limits.py"}),
    "what depends on the kind of a capture": (
        r"[\"']flight_recorder[\"']",
        {"model/capture.py", "captures/kinds/flight_recorder.py", "service/hangs.py"},
    ),
    "the open of a file that is checked first": (
        r"O_PATH\b",
        {"linux/foreign_file.py", "cli/sources/endpoint_files.py"},
    ),
}


@pytest.mark.parametrize("what", PLACES)
def test_it_is_written_in_one_place(what: str) -> None:
    pattern, places = PLACES[what]
    found = {
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for root in PRODUCT
        for path in root.rglob("*.py")
        if str(path.relative_to(root)) not in places
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    }
    assert not found, f"{what}: use {', '.join(sorted(places))}"


def test_no_module_gives_a_name_to_two_things() -> None:
    """The second constant would stand for the first one in the functions above it, too; ruff sees that of functions alone."""
    twice = {}
    for root in PRODUCT:
        for path in root.rglob("*.py"):
            nodes = ast.parse(path.read_text(encoding="utf-8")).body
            targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
            targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
            names = Counter(
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(getattr(name, "ctx", None), ast.Store) and isinstance(name, ast.Name)
            )
            if found := [name for name, count in names.items() if count > 1]:
                twice[str(path)] = found
    assert twice == {}
