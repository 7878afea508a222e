"""The code of a run: its script and its own modules, without secrets and bounded; and the difference of two runs."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from processes import clean_environ, command, run

from trackside.environment.git import CODE_BYTES, LEFT_OUT, code

if TYPE_CHECKING:
    from pathlib import Path

    from processes import Daemon


def module(path: Path) -> ModuleType:
    made = ModuleType(path.stem)
    made.__file__ = str(path)
    return made


def test_the_script_comes_first_then_its_own_modules_without_secrets_and_those_that_do_not_fit_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / ".venv" / "site-packages").mkdir(parents=True)
    texts = {
        "train.py": 'api_key = "sk-abcdefghijklmnopqrstuvwxyz"\nimport net\n',
        "net.py": "depth = 3\n",
        "zoo/big.py": "#" * CODE_BYTES,
        "zoo/small.py": "width = 4\n",
        ".venv/site-packages/library.py": "x = 1\n",
    }
    monkeypatch.setitem(sys.modules, "of_test_os", module(tmp_path / "lib" / "os.py"))
    monkeypatch.setattr("os.__file__", str(tmp_path / "lib" / "os.py"))
    texts["lib/os.py"] = "system = 1\n"
    (tmp_path / "lib").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setitem(sys.modules, f"of_test_{name}", module(tmp_path / name))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    monkeypatch.setenv("TRACKSIDE_CODE", "1")
    found = code()
    assert re.findall("(?m)^===== (.+)", found) == ["train.py", "net.py", "zoo/big.py (left out)", "zoo/small.py"]
    assert "depth = 3" in found
    for number in range(LEFT_OUT + 1):
        (tmp_path / "zoo" / f"{number}.py").hardlink_to(tmp_path / "zoo" / "big.py")
        monkeypatch.setitem(sys.modules, f"of_test_{number}", module(tmp_path / "zoo" / f"{number}.py"))
    assert code().count("(left out)") == LEFT_OUT
    assert "abcdefghijkl" not in found
    monkeypatch.setenv("TRACKSIDE_CODE", "0")
    assert not code()
    monkeypatch.setenv("TRACKSIDE_CODE", "1")
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert not code(), "a command has no script"


def test_what_changed_in_the_code_between_two_runs_is_a_diff(daemon: Daemon, tmp_path: Path) -> None:
    script, net = tmp_path / "train.py", tmp_path / "net.py"
    script.write_text(
        "import sys, trackside, net\nrun = trackside.init(sys.argv[1])\nrun.push(loss=net.loss)\nrun.finish()\n"
    )
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_CODE": "1"})
    for name, value in (("old", 2), ("new", 1)):
        net.write_text(f"# a net\nloss = {value}\n")
        training = [sys.executable, "-B", str(script), name]
        run(training, env=environ, check=True)

    def compare(*runs: str) -> str:
        asked = command("compare", *runs, "--code", f"--storage.path={daemon.history}")
        return run(asked, check=True).stdout

    assert compare("old", "new").splitlines() == [
        *("--- a/net.py", "+++ b/net.py", "@@ -1,2 +1,2 @@", " # a net", "-loss = 2", "+loss = 1")
    ]
    assert daemon.api("code?run=new&run=new").json() == {"diff": []}
    assert "+loss = 1" in daemon.api("code?run=new").json()["diff"], "of one run it is the code"
