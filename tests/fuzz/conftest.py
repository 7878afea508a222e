"""A short run of each fuzzed function in `make test`, and ten minutes guided by coverage in `make soak`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from fuzz.mutation import TOKENS
from processes import DEADLINE, ROOT, clean_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SECONDS = 600
MEGABYTES = 700
"""Memory of a process that fuzzes. It needs some 300; one input must not cost more than the rest."""
INPUT_SECONDS = 10


@pytest.fixture
def fuzz(
    request: pytest.FixtureRequest, tmp_path: Path, soaked: list[tuple[str, int, float]]
) -> Callable[[Callable[[], None], Sequence[bytes]], None]:
    """A function ``fuzz(short, seeds)`` that calls *short*, or under --soak fuzzes the module's ``check``."""

    def run(short: Callable[[], None], seeds: Sequence[bytes] = ()) -> None:
        if not request.config.getoption("--soak"):
            short()
            return
        if find_spec("atheris") is None:
            pytest.skip("atheris is not installed")
        corpus = tmp_path / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(seeds):
            (corpus / str(number)).write_bytes(seed)
        words = tmp_path / "words"
        words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in TOKENS))
        module = f"fuzz.{request.path.stem}"
        options = ["-print_final_stats=1", f"-max_total_time={SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
        options += [
            f"-timeout={INPUT_SECONDS}",
            f"-artifact_prefix={tmp_path}/",
            "-max_len=20000",
            f"-dict={words}",
            str(corpus),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.engine", module, *options],
            env={**clean_environ(), "PYTHONPATH": f"{ROOT}/tests"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS + DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-10_000:]
        executions = int(re.findall(r"stat::number_of_executed_units: *(\d+)", done.stderr)[-1])
        coverage = re.findall(r"cov: (\d+)", done.stderr)[-1]
        soaked.append((f"{request.node.name}: inputs, {coverage} places covered", executions, SECONDS))

    return run
