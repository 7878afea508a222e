"""The commands of docs/benchmark.md, one of whose outputs it shows."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING

import processes
from click.testing import CliRunner
from processes import ROOT, clean_environ, command

from trackside_daemon.cli.main import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = ROOT / "docs" / "benchmark.md"
TABLE = re.compile(r"(?<=```text\n)latency and throughput:.*?(?=\n```)", re.DOTALL)


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def names(table: str) -> list[list[str]]:
    """Return the first cells of each row: loads and variants, which do not depend on the machine."""
    return [line.split()[:2] for line in table.splitlines() if line.startswith("  batch=")]


def test_the_options_on_the_page_exist() -> None:
    found = [words[2:] for words in commands() if words[:2] == ["trackside", "benchmark"]]
    assert len(found) == 2
    for arguments in found:
        assert "No such option" not in CliRunner().invoke(load("benchmark"), [*arguments, "--prompts=/nowhere"]).stderr


def test_the_table_is_what_the_command_prints(
    tmp_path: Path, count: Callable[[int, int], int], update_golden: bool
) -> None:
    table = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    assert {name for _, name in names(table[0])} == {"fp32", "bf16", "int8-dynamic", "fp32+compile"}
    assert "LARGEST DIFFERENCE" in table[0]
    if not count(0, 1):  # it trains and compiles, which takes minutes
        return
    train, benchmark = commands()[:2]
    weights = str(tmp_path / "model.pt")
    processes.run([sys.executable, *train[1:-1], weights], cwd=ROOT, check=True, env=clean_environ())
    arguments = [weights if word == "model.pt" else word for word in benchmark[1:]]
    done = processes.run(
        command(*arguments), cwd=ROOT, check=True, env=clean_environ({"TRACKSIDE_SPOOL": str(tmp_path)}), timeout=900
    )
    printed = "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("  run ", "  no daemon")))
    assert names(printed) == names(table[0])
    if update_golden:
        PAGE.write_text(TABLE.sub(lambda _: printed.strip(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
