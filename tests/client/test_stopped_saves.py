"""trackside.Checkpoints, stopped at random moments and between any two calls: what was saved last is loaded."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from client.stopped_saves import BYTES, HOST
from processes import clean_environ

from trackside.checkpoints import folder, state
from trackside.checkpoints.checkpoints import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 7
SCRIPT, SOURCE = (Path(__file__).with_name(name) for name in ("stopped_saves.py", "interrupted_calls.c"))
STOPS = 5  # in one directory, before it is made anew
CALLS, SECONDS = 120, 0.1  # about what four saves need
DAY = 86400.0
NO_REPLACE, LOST_ANSWERS, NO_DIRECTORY_SYNC = 1, 2, 4  # as in the C code


class Situation(NamedTuple):
    """The state of a directory, and the faults of the trainings that save there.

    Attributes:
        prepare: Makes the directory.
        keep: As of `Checkpoints`.
        goes_back: Keep the best loss, and go back to it at each start.
        loads: Each start loads; else it begins at the first step again.
        writers: Trainings that save at once.
        fails: What fails besides: ``room``, ``readonly_at``, ``flags`` or ``moved_clock``.
        ranks: Save as the ranks of a sharded model do.
        spare: How many intact ones may be missing of *keep*, since damage of others is unknown.
    """

    prepare: Callable[[Path, random.Random], None]
    keep: int = 3
    goes_back: bool = False
    loads: bool = True
    writers: int = 1
    fails: str = ""
    ranks: bool = False
    spare: int = 0


def fresh(_: Path, __: random.Random) -> None:
    """Leave the directory absent."""


def earlier(directory: Path, chance: random.Random) -> None:
    """Save 1000, 2000 and 3000 by an earlier training, and by an older version with a clock that was ahead or behind."""
    checkpoints = Checkpoints(directory)
    for number in (1, 2, 3):
        made = {"number": number, "data": chance.randbytes(BYTES)}
        path = checkpoints.save(made, 1000 * number, {"loss": 0.2 + number / 10})
        assert path is not None
    older, ahead = chance.random() < 0.5, chance.choice((-DAY, 0.0, DAY))
    for one in folder.folders(directory) if older else ():
        about = json.loads((one.path / folder.MANIFEST).read_bytes())
        kept = {name: value for name, value in about.items() if name not in {"sequence", "writer"}}
        (one.path / folder.MANIFEST).write_text(json.dumps({**kept, "time": kept["time"] + ahead}))


def damaged(directory: Path, chance: random.Random) -> None:
    """Damage the newest of an earlier training, so that its size shows it."""
    earlier(directory, chance)
    newest = directory / "step-00003000"
    chance.choice((lambda: os.truncate(newest / state.PLAIN, 300), (newest / state.PLAIN).unlink))()


def flipped(directory: Path, chance: random.Random) -> None:
    """Flip a bit of the newest."""
    earlier(directory, chance)
    file = directory / "step-00003000" / state.PLAIN
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def leftover(directory: Path, chance: random.Random) -> None:
    """Leave unfinished folders: of a process that is gone, of a machine that was replaced, and of today's version."""
    earlier(directory, chance)
    for owner in (f"{HOST}-{10**30}", "replaced-7", f"{HOST}-{os.getpid()}"):
        for what, step in (("writing", "00003100"), ("deleting", "00000900.2"), ("writing", "00003100.4")):
            path = directory / f".{what}-{owner}-step-{step}"
            shutil.copytree(directory / "step-00002000", path)
            os.utime(path, (time.time() - 2 * DAY,) * 2)
    (directory / f".writing-{HOST}-{10**30}-step-00003200.9").symlink_to("step-00003000")
    (directory / "step-00002500").mkdir()  # by hand


def dangling(directory: Path, chance: random.Random) -> None:
    """Let the link lead nowhere, as the path of a step does."""
    earlier(directory, chance)
    latest = directory / folder.LATEST
    latest.unlink()
    latest.symlink_to(chance.choice(("step-00009000", directory / "step-00009000", "/nowhere")))
    (directory / "step-00003100").symlink_to("nowhere")


SITUATIONS = {
    "fresh": Situation(fresh),
    "higher steps of an earlier training": Situation(earlier, loads=False),
    "damaged newest, one kept": Situation(damaged, keep=1),
    "damaged newest, two kept": Situation(damaged, keep=2),
    "flipped bit in the newest, three kept": Situation(flipped, spare=1),
    "going back to the best": Situation(earlier, keep=1, goes_back=True),
    "two trainings at once": Situation(earlier, keep=1, writers=2),
    "two trainings at once, from the first step": Situation(fresh, keep=2, loads=False, writers=2),
    "full disk": Situation(earlier, keep=2, fails="room"),
    "disk that becomes read-only": Situation(earlier, keep=2, fails="readonly_at"),
    "network file system": Situation(earlier, keep=2, fails="flags"),
    "leftover unfinished folders": Situation(leftover, keep=1),
    "dangling links": Situation(dangling, keep=2),
    "stepping clock": Situation(earlier, keep=2, fails="moved_clock"),
    "ranks of a sharded model": Situation(fresh, keep=2, ranks=True),
}


class Stopped:
    """Processes that save and are stopped."""

    def __init__(self, library: Path) -> None:
        environ = clean_environ({"LD_PRELOAD": str(library), "TRACKSIDE_DISABLED": "1"})
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
        self._process = subprocess.Popen([sys.executable, str(SCRIPT)], **streams)

    def live(self, lives: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return the reports of processes that ran at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(lives) + "\n")
        self._process.stdin.flush()
        found: list[list[dict[str, Any]]] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End."""
        self._process.communicate()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """The processes that are stopped in the tests of this file."""
    library = tmp_path_factory.mktemp("library") / "interrupted_calls.so"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *options, "-o", library, SOURCE, "-ldl"], check=True)
    processes = Stopped(library)
    yield processes
    processes.close()


class Directory:
    """A directory of checkpoints, and all that was saved in it."""

    def __init__(self, path: Path, situation: Situation, chance: random.Random) -> None:
        self.path, self.situation, self.chance = path, situation, chance
        shutil.rmtree(path, ignore_errors=True)
        situation.prepare(path, chance)
        self.reports: dict[int, dict[str, Any]] = {
            number: {"number": number, "begin": number - 10, "end": number - 9.5, "saved": True, "loss": loss}
            for number, loss in self.intact().items()
        }

    def intact(self) -> dict[int, float]:
        """Return the numbers and losses of the intact checkpoints."""
        there = [one for one in folder.folders(self.path) if one.saved and not folder.defect(one.path)]
        return {state.read_any(one.path)["state"]["number"]: one.saved.metrics["loss"] for one in there if one.saved}

    def stop(self, processes: Stopped) -> int:
        """Let the trainings save until they are stopped; return how many saves have returned."""
        number = max(self.reports, default=0) + 1
        lives = [self._life(number + 10 * writer) for writer in range(self.situation.writers)]
        if self.chance.random() < 0.3:
            lives = [{**life, "kill_at": 0} for life in lives]
            lives[0]["seconds"] = self.chance.uniform(0.0, SECONDS)
        returned = 0
        for reports in processes.live(lives):
            for one in reports:
                self.reports[one["number"]] = one
                assert one.get("exists", True), f"the path that save returned does not exist: {one}"
                assert self.situation.fails != "flags" or one.get("saved", True), f"it was saved: {one}"
                returned += one.get("saved", False)
        return returned

    def _life(self, number: int) -> dict[str, Any]:
        one, chance = self.situation, self.chance
        fails = {
            "room": chance.randrange(100, 4 * BYTES),
            "readonly_at": chance.randrange(1, CALLS),
            "flags": chance.choice((NO_REPLACE, LOST_ANSWERS, NO_DIRECTORY_SYNC, NO_REPLACE | LOST_ANSWERS)),
            "moved_clock": chance.choice((-DAY, -1.0, DAY, 365 * DAY)),
        }
        return {
            "directory": str(self.path),
            "keep": one.keep,
            "best": "loss" if one.goes_back else "",
            "number": number,
            "saves": 4,
            "loads": one.loads,
            "goes_back": one.goes_back,
            "ranks": one.ranks,
            "seconds": None,
            "kill_at": chance.randrange(1, CALLS),
            "chance": chance.randrange(2**31),
            **{name: value * (name == one.fails) for name, value in fails.items()},
        }

    def check(self) -> None:
        """Check what is there after a stop."""
        saved = [one for one in self.reports.values() if one.get("saved")]
        intact = self.intact()
        checkpoints = Checkpoints(self.path)
        loaded = checkpoints.load()
        if loaded is None:
            assert not saved
            return
        self._require_newest(loaded["number"], saved)
        assert len(intact) >= min(self.situation.keep, len(saved)) - self.situation.spare, (intact, saved)
        if self.situation.goes_back:
            best = checkpoints.best("loss")
            assert best is not None
            assert best.metrics["loss"] <= min(one["loss"] for one in saved)
        self._check_link([one for one in saved if one["number"] > 3 or self.situation.prepare is fresh])

    def _check_link(self, saved: list[dict[str, Any]]) -> None:
        """Check that the link names an intact checkpoint, and the one that these processes saved last."""
        latest = self.path / folder.LATEST
        if not (saved and latest.exists()):
            # The link of a process that was killed before is as it was; where nothing can be replaced, it is made anew.
            assert not saved or self.situation.fails == "flags"
            return
        assert not folder.defect(latest.resolve())
        if self.situation.fails not in {"room", "readonly_at"}:  # a link needs room too
            self._require_newest(state.read_any(latest.resolve())["state"]["number"], saved)

    def _require_newest(self, number: int, saved: list[dict[str, Any]]) -> None:
        """Check that no save began and returned after the one that is loaded had returned."""
        ended = self.reports[number].get("end", float("inf"))
        assert [one for one in saved if one["begin"] > ended] == [], f"{number} is older"

    def leave(self) -> None:
        """Save once more without a fault; check that only what has to stay is left."""
        checkpoints = Checkpoints(self.path, self.situation.keep, best="loss" if self.situation.goes_back else "")
        checkpoints.load()
        path = checkpoints.save({"number": 10**6, "data": b""}, checkpoints.step + 100, {"loss": 2.0})
        assert path is not None
        assert (self.path / folder.LATEST).resolve() == path.resolve()
        assert Checkpoints(self.path).load()["number"] == 10**6
        assert not list(self.path.glob(".*"))
        assert len(self.intact()) <= self.situation.keep + self.situation.goes_back


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide PyTorch, which other tests have imported: the processes have none either."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("TRACKSIDE_DISABLED", "1")


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_was_saved_last_is_loaded_wherever_saving_was_stopped(
    name: str, tmp_path: Path, stopped: Stopped, count: Callable[[int, int], int]
) -> None:
    chance = random.Random(f"{SEED} {name}")
    directory = Directory(tmp_path / "0", SITUATIONS[name], chance)
    returned = 0
    stops = count(STOPS, 500)
    for stop in range(stops):
        if stop and stop % STOPS == 0:
            directory.leave()
            directory = Directory(tmp_path / str(stop), SITUATIONS[name], chance)
        returned += directory.stop(stopped)
        directory.check()
    directory.leave()
    assert returned > stops / 2 or stops < 100
