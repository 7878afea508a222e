"""Print the results of pytest-benchmark as tables for bench/README.md, with ratios within the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session: Any = getattr(config, "_benchmarksession", None)
    groups: dict[str, list[Any]] = {}
    for measured in getattr(session, "benchmarks", []):
        groups.setdefault(str(measured.group), []).append(measured)
    for group, members in groups.items():
        first = members[0].stats.median
        terminalreporter.write_line(f"\n| {group} | median, ms | p90, ms | ratio |\n|---|---:|---:|---:|")
        for one in members:
            ninetieth = sorted(one.stats.data)[int(len(one.stats.data) * 0.9)]
            name = one.extra_info.get("what", one.name)
            terminalreporter.write_line(
                f"| {name} | {one.stats.median * 1e3:.2f} | {ninetieth * 1e3:.2f} | {one.stats.median / first:.1f} |"
            )
