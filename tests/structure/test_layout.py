"""The layout of the packages: nothing loose, no import circle, no import upwards and no exception from that."""

from __future__ import annotations

import re
import subprocess
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import grimp
import pytest
from importlinter import configuration
from importlinter.application.use_cases import read_user_options
from processes import ROOT

if TYPE_CHECKING:
    from typing import Any

DAEMON = ROOT / "daemon" / "trackside_daemon"
PACKAGES = [path.parent for root in (DAEMON, ROOT / "client" / "trackside") for path in root.rglob("__init__.py")]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return all imports: those for type checkers count, as modules that need each other's types cannot be read one by one."""
    return grimp.build_graph("trackside", "trackside_daemon", cache_dir=None)


def contracts() -> list[dict[str, Any]]:
    configuration.configure()
    return list(read_user_options(str(ROOT / "pyproject.toml")).contracts_options)


def layers(package: str = "trackside_daemon") -> list[set[str]]:
    """Return the layers of the parts of a package, the highest first."""
    found = [
        [{name.strip().split(".")[-1] for name in line.replace(":", "|").split("|")} for line in one["layers"]]
        for one in contracts()
        if one["type"] == "layers" and ("containers" in one) == (package == "trackside")
    ]
    [names] = found
    return [{f"{package}.{name}" for name in layer} for layer in names]


def test_nothing_else_lies_at_the_top_level() -> None:
    """Files that a tool leaves in a clone are committed with the rest otherwise."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {".ci", ".github", "bench", "client", "daemon", "deploy", "docs", "examples", "grafana", "tests"}
    files = {".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "pyproject.toml"}
    assert {path.partition("/")[0] for path in listed.splitlines()} == folders | files


def test_no_module_lies_outside_a_package() -> None:
    assert {path.name for path in DAEMON.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_every_directory_with_modules_is_a_package() -> None:
    modules = {path.parent for root in (DAEMON, ROOT / "client" / "trackside") for path in root.rglob("*.py")}
    assert modules == set(PACKAGES)


def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_every_package_of_the_daemon_is_in_a_layer() -> None:
    named = {f"trackside_daemon.{path.name}" for path in PACKAGES if path.parent == DAEMON}
    assert named | {"trackside_daemon.__main__"} == set().union(*layers())


def test_no_part_of_the_client_imports_upwards(graph: grimp.ImportGraph) -> None:
    """The contracts, which lint-imports checks for client and daemon, leave out the imports for type checkers."""
    level = {name: number for number, names in enumerate(layers("trackside")) for name in names}
    found = [
        f"{importer} -> {imported}"
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if (source := _package(importer)) in level
        and (target := _package(imported)) in level
        and source != target
        and level[source] >= level[target]
    ]
    assert found == []


def test_one_function_alone_makes_the_command_that_runs_our_modules() -> None:
    """Any other ``-m`` would import from the working directory."""
    starts = {
        path.relative_to(DAEMON).as_posix()
        for path in DAEMON.rglob("*.py")
        if re.search(r"""sys\.executable, .*["']-m["']""", path.read_text(encoding="utf-8"))
        or re.search(r"""\[[^\]\n]*["']-m["'], ["']?trackside""", path.read_text(encoding="utf-8"))
    }
    assert starts == set()
    [own] = [path for path in DAEMON.rglob("*.py") if '"-P", "-m"' in path.read_text(encoding="utf-8")]
    assert own.name == "child_process.py"


def test_the_layers_have_no_exceptions() -> None:
    assert [one["name"] for one in contracts() if one["type"] == "layers" and one.get("ignore_imports")] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: ".".join(path.relative_to(ROOT).parts[1:]))
def test_every_package_states_its_purpose(package: Any) -> None:
    text = (package / "__init__.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.split('"""')[1].strip().splitlines()) >= 3  # what it is for, a blank line, what enters and leaves


def _package(module: str) -> str:
    """Return the top-level package of a module: ``trackside_daemon.web`` of ``trackside_daemon.web.http.server``."""
    return ".".join(module.split(".")[:2])
