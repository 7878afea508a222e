"""Fill a folder with the wheels that a GPU machine without network may lack; run by ``make gpu-wheels``.

    python -m bench.gpu_report.wheels build/gpu-wheels 3.10 3.11 3.12 3.13

PyTorch and numpy are not among them: they are too large, and a machine with a GPU has them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1")
MACHINE = "x86_64"
TESTS = ("pytest", "hypothesis", "httpx")  # what tests/gpu imports
BEFORE_311 = ("exceptiongroup", "tomli", "typing-extensions")  # pip reads markers for the Python that runs it
MOST_MIB = 60.0


def main() -> None:
    """Fill the folder that the command line names."""
    folder, *versions = sys.argv[1:]
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    needed = requirements()
    (place / "requirements.txt").write_text("".join(f"{line}\n" for line in needed))
    for version in versions:
        download(place, [*needed, "pip", *BEFORE_311], version)
    size = sum(file.stat().st_size for file in place.iterdir()) / 2**20
    print(f"{folder}: {len(list(place.glob('*.whl')))} wheels for Python {', '.join(versions)}, {size:.1f} MiB")
    if size > MOST_MIB:
        sys.exit(f"{size:.1f} MiB are more than the {MOST_MIB:g} MiB that a machine may accept: name fewer versions")


def requirements() -> list[str]:
    """Return the requirements of the client and of the daemon, and of the tests, without markers."""
    wanted = re.compile(r"""^[^;]*$|;\s*extra == ['"](daemon)['"]$""")
    lines = [line.partition(";")[0].strip() for line in requires("trackside") or () if wanted.search(line)]
    listed = [line for line in lines if not line.startswith("trackside")]
    tests = [line.partition(";")[0].strip() for line in requires("trackside") or () if line.startswith(TESTS)]
    return [*listed, *(line for line in tests if re.split(r"[^\w-]", line)[0] in TESTS)]


def download(place: Path, needed: list[str], version: str) -> None:
    """Download the wheels for one version of Python."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--implementation=cp", f"--python-version={version}", f"--dest={place}"]
    command += [f"--platform={platform}_{MACHINE}" for platform in PLATFORMS]
    subprocess.run([*command, *needed], check=True)


if __name__ == "__main__":
    main()
