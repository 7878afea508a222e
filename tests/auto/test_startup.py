"""The start-up module in real processes: it chains, hooks what is imported, and leaves all other commands alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT, clean_environ, start

from trackside.auto.environment import STARTUP, refusal, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

REPORT = """
import json, os, sys
print(json.dumps({
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "imported": [name for name in sys.modules if name.startswith("trackside")],
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "mark": getattr(sys.modules.get("sitecustomize"), "MARK", None),
    "startup": [path for path in sys.path if path.endswith("startup")],
    "threads": len(os.listdir("/proc/self/task")),
}))
"""
TORCH = """
import sys
from importlib.util import find_spec
MARK = "imported"
__version__ = "0"
def loaded(): return type(__spec__.loader).__name__, type(__loader__).__name__
"""


def python(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a new Python."""
    return subprocess.run(
        [sys.executable, *arguments], env=clean_environ(environ), capture_output=True, text=True, check=False
    )


def started(code: str, *flags: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return what a new Python prints as JSON."""
    done = python(*flags, "-c", code, environ=environ)
    assert (done.stderr, done.returncode) == ("", 0)
    return json.loads(done.stdout)


def on(**more: str) -> dict[str, str]:
    environ = {"PYTHONPATH": os.pathsep.join(more.pop("path", "").split()), **more}
    return {**environ, **variables(environ)}


def test_a_command_without_pytorch_gets_a_finder_and_nothing_else() -> None:
    found = started(REPORT, environ=on())
    assert found["finders"][0] == "Finder"
    assert found["imported"] == ["trackside_imports", "trackside_patched_methods"]
    assert (found["startup"], found["threads"]) == ([], 1)


def test_another_sitecustomize_runs_as_if_it_were_the_first(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("MARK = 'theirs'")
    found = started(REPORT, environ=on(path=str(tmp_path)))
    assert (found["mark"], found["sitecustomize"]) == ("theirs", str(tmp_path / "sitecustomize.py"))
    assert found["finders"][0] == "Finder"


def test_an_error_in_another_sitecustomize_reads_as_without_trackside(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import nothing_of_this_name")
    environs = {"PYTHONPATH": str(tmp_path)}, on(path=str(tmp_path))
    alone, watched = (python("-c", "print(1)", environ=environ) for environ in environs)
    assert (alone.stdout, alone.stderr) == (watched.stdout, watched.stderr)
    assert "nothing_of_this_name" in watched.stderr


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_the_environment_gets_nothing_and_a_child_can_turn_it_off(flag: str) -> None:
    assert "Finder" not in started(REPORT, flag, environ=on())["finders"]
    if flag == "-I":
        assert "Finder" not in started(REPORT, environ={**on(), "TRACKSIDE_AUTO": "0"})["finders"]


def test_a_module_retains_its_loader_and_a_hook_that_cannot_be_installed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    code = "import json, torch, sys; print(json.dumps([torch.loaded(), torch.MARK, 'trackside.auto.hooks' in sys.modules]))"
    done = python("-c", code, environ=on(path=f"{tmp_path} {ROOT / 'client'}"))
    assert json.loads(done.stdout) == [["SourceFileLoader"] * 2, "imported", True]
    [line] = done.stderr.splitlines()
    assert line.startswith("trackside: auto: torch: ")
    assert line.endswith("; training goes on without these values")


def test_a_python_without_trackside_imports_pytorch_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "trackside.py").write_text("raise ImportError('broken')")
    code = f"{REPORT.replace('import json', 'import torch, json')}"
    found = started(code, environ=on(path=str(tmp_path)))
    assert "Finder" not in found["finders"]


def test_python_m_trackside_auto_runs_the_script_in_its_place(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{REPORT}\nprint(json.dumps([sys.argv, sys.path[0], os.environ['TRACKSIDE_AUTO']]))\nsys.exit(3)"
    )
    done = python("-u", "-m", "trackside.auto", str(script), "--lr", "1")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr, first["finders"][0]) == (3, "", "Finder")
    assert second == [[str(script), "--lr", "1"], str(tmp_path), "1"]


def test_python_m_trackside_auto_prints_its_usage_and_its_limits() -> None:
    for arguments, status, text in (
        ([], 2, "usage: "),
        (["--help"], 0, "usage: "),
        (["-I", "-c", "1"], 0, "-I ignores"),
    ):
        done = python("-m", "trackside.auto", *arguments)
        assert (done.returncode, text in done.stdout + done.stderr) == (status, True)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("train.py -I", ""),
        ("-u train.py", ""),
        ("-uI train.py", "-I"),
        ("-X importtime -E train.py", "-E"),
        ("-Xutf8 -m torch.distributed.run", ""),
        ("-c I", ""),
        ("-cI", ""),
        ("-WIgnore -S x.py", "-S"),
        ("", ""),
    ],
)
def test_flags_of_python_that_hide_the_start_up_module(arguments: str, flag: str) -> None:
    found = refusal(arguments.split())
    assert (flag in found) if flag else found == ""


def test_the_start_up_module_comes_first_and_once() -> None:
    assert variables({"PYTHONPATH": f"a:{STARTUP}::b"})["PYTHONPATH"] == f"{STARTUP}:a:b"
    assert variables({})["PYTHONPATH"] == STARTUP


def test_the_start_up_module_has_the_syntax_of_old_versions() -> None:
    text = Path(STARTUP, "sitecustomize.py").read_text("utf-8")
    assert ast.parse(text, feature_version=(3, 4))
    assert not any(
        isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr) for node in ast.walk(ast.parse(text))
    )


@pytest.mark.usefixtures("only_soak")
@pytest.mark.skipif(
    find_spec("lightning") is None or find_spec("transformers") is None, reason="they are not installed"
)
def test_methods_are_replaced_while_a_framework_is_half_imported() -> None:
    code = """
import sys, torch
from importlib import import_module
from trackside.auto.hooks import failures
from trackside.auto.startup.trackside_imports import watch
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS
watch(PATCHED_METHODS)
for name in sys.argv[1:]:
    import_module(name)
    print(name, failures)
"""
    arguments = [
        sys.executable,
        "-c",
        code,
        "transformers.trainer",
        "lightning",
    ]  # none of them is in the text, and so preloaded
    with start(arguments, stdout=subprocess.PIPE, text=True, env=clean_environ()) as process:
        assert process.communicate()[0].splitlines() == ["transformers.trainer []", "lightning []"]
