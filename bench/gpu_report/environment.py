"""Make an environment from the Python that is there: its own packages, trackside from the tree, and wheels for the rest.

Nothing but the standard library is imported, and no network is used.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu_report.result import Figure, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "gpu-wheels"
SECONDS = 120.0

MODULES = (
    *("torch", "numpy", "zmq", "msgspec", "pydantic", "yaml", "prometheus_client", "starlette", "uvicorn", "typer"),
    *("pynvml", "psutil", "pytest", "hypothesis", "httpx", "trackside", "trackside_daemon"),
)
PROBE = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        found[name] = str(getattr(module, "__version__", "present"))
    except BaseException as error:
        found[name] = f"missing ({type(error).__name__}: {error})"
print("\\n" + json.dumps(found))
"""


@dataclass
class Environment:
    """A Python that can import trackside, PyTorch and the tests.

    Attributes:
        python: The interpreter.
        environ: Variables for it, beyond those of this process.
        result: What was installed, and what is missing.
    """

    python: Path
    environ: dict[str, str]
    result: Result = field(default_factory=Result)


def prepare(place: Path) -> Environment:
    """Make the environment in a directory; what cannot be installed is reported as missing."""
    try:
        made = _venv(place)
    except (OSError, subprocess.SubprocessError) as error:
        made = _directory(place)
        made.result.notes.append(
            f"No virtual environment ({_last_line(error)}): PYTHONPATH names the packages instead."
        )
    if WHEELS.is_dir():
        _install(made)
    else:
        made.result.notes.append(
            f"{WHEELS.relative_to(ROOT)} does not exist: only the packages of this Python are used."
        )
    _report_modules(made)
    return made


def _venv(place: Path) -> Environment:
    """Make a virtual environment that also sees the packages of this Python, which may be in one itself."""
    # --system-site-packages would show those of the Python that *this* environment was made from.
    _run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(place)])
    made = Environment(place / "bin" / "python", {})
    script = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"
    packages = Path(json.loads(_run([str(made.python), "-c", script])))
    base = [directory for directory in sys.path if Path(directory).name in {"site-packages", "dist-packages"}]
    (packages / "aa_trackside.pth").write_text(f"{ROOT}/client\n{ROOT}/daemon\n")
    (packages / "zz_base.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in base))
    return made


def _directory(place: Path) -> Environment:
    packages = place / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    path = [f"{ROOT}/client", f"{ROOT}/daemon", str(packages), os.environ.get("PYTHONPATH", "")]
    return Environment(Path(sys.executable), {"PYTHONPATH": os.pathsep.join(filter(None, path))})


def _install(made: Environment) -> None:
    """Install the requirements that this Python lacks; one by one if they cannot be installed together."""
    (pip, *_) = [*sorted(str(wheel) for wheel in WHEELS.glob("pip-*.whl")), ""]
    command = [
        str(made.python),
        *([f"{pip}/pip"] if pip else ["-m", "pip"]),
        "--isolated",
        "install",
        "--quiet",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--no-index", "--no-cache-dir", f"--find-links={WHEELS}"]
    if target := made.environ.get("PYTHONPATH"):
        command.append(f"--target={target.split(os.pathsep)[2]}")
    needed = (WHEELS / "requirements.txt").read_text().split("\n")
    needed = [line for line in needed if line]
    try:
        _run([*command, *needed], made.environ)
    except (OSError, subprocess.SubprocessError) as error:
        made.result.notes.append(f"Not all wheels could be installed together: {_last_line(error)}")
        for line in needed:
            try:
                _run([*command, line], made.environ)
            except (OSError, subprocess.SubprocessError) as reason:
                made.result.notes.append(f"{line}: {_last_line(reason)}")


def _report_modules(made: Environment) -> None:
    printed = _run([str(made.python), "-W", "ignore", "-c", PROBE, *MODULES], made.environ)
    modules: dict[str, str] = json.loads(printed.strip().splitlines()[-1])
    missing = [f"{name}: {state}" for name, state in modules.items() if state.startswith("missing")]
    made.result.figures.append(Figure("modules that are missing", str(len(missing)), "0", met=not missing))
    versions = [f"{name} {state}" for name, state in modules.items() if not state.startswith("missing")]
    made.result.notes += [*missing, ", ".join(versions)]


def _run(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr or done.stdout)
    return done.stdout


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    lines = [line for line in str(text).splitlines() if re.search(r"\w", line)]
    return lines[-1].strip() if lines else type(error).__name__
