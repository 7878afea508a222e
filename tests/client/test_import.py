"""Modules that `import trackside` loads, and the names that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from processes import clean_environ

import trackside

IMPORTS = """
import json, os, sys, threading
import zmq, msgspec  # with all that they need themselves
before = set(sys.modules)
import trackside
brought = {name.partition(".")[0] for name in set(sys.modules) - before}
opened = len(os.listdir("/proc/self/fd"))
print(json.dumps({"brought": sorted(brought), "threads": threading.active_count(), "files": opened}))
"""


def run(code: str, *flags: str) -> str:
    ran = subprocess.run(
        [sys.executable, *flags, "-c", code], env=clean_environ(), capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    return ran.stdout


def test_importing_brings_only_the_standard_library_zmq_and_msgspec_starts_no_thread_and_opens_no_file() -> None:
    found = json.loads(run(IMPORTS, "-W", "error"))
    assert set(found["brought"]) - set(sys.stdlib_module_names) - {"zmq", "msgspec"} == {"trackside"}
    assert (found["threads"], found["files"]) == (1, 4)  # the three of the process, and the listing itself


def test_what_is_promised_is_there_and_in_order() -> None:
    assert trackside.__all__ == sorted(trackside.__all__)
    assert set(dir(trackside)) > {*trackside.__all__, "open", "__version__"}  # a star must not replace the builtin
    assert all(hasattr(trackside, name) for name in dir(trackside))  # the first use imports each
    public = {name for name in vars(trackside) if not name.startswith("_") and name != "TYPE_CHECKING"}
    modules = {path.stem for path in Path(trackside.__file__).parent.iterdir()}
    assert public - modules == {name for name in dir(trackside) if not name.startswith("_")}


def test_the_version_is_that_of_the_installed_package() -> None:
    assert trackside.__version__ == version("trackside")


def test_no_module_of_the_package_has_a_public_name() -> None:
    modules = {path.stem for path in Path(trackside.__file__).parent.iterdir()}
    assert modules.isdisjoint({*trackside.__all__, "open"})


def test_the_parts_that_a_daemon_or_a_watched_command_uses_do_not_bring_the_client() -> None:
    code = "import json, sys, {}, trackside.wire; print(json.dumps('trackside.default_run' in sys.modules))"
    assert json.loads(run(code.format("trackside_daemon"))) is False
    assert json.loads(run(code.format("trackside"))) is True


def test_every_promised_name_has_a_docstring() -> None:
    for name in trackside.__all__:
        assert getattr(trackside, name).__doc__


def test_the_names_come_by_a_star_too() -> None:
    found = json.loads(run("import json; from trackside import *; print(json.dumps(sorted(set(dir()) - {'json'})))"))
    assert [name for name in found if not name.startswith("__")] == sorted(trackside.__all__)
