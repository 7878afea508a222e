"""trackside.Checkpoints: what it saves it loads, whatever kills it, fills the disk or damages a file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
from client.stopped_saves import HOST
from processes import DEADLINE, clean_environ

from trackside import default_run
from trackside.checkpoints import folder, sharded, state
from trackside.checkpoints.checkpoints import SPARE_BYTES, Checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = {
    "loss": 0.5,
    "words": ["a", ("b", 3)],
    "seen": {1, 2},
    "rate": 1 + 2j,
    "raw": b"\0\xff",
    "nothing": None,
    "on": True,
}


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The events that would be sent; no run is opened."""
    monkeypatch.setenv("TRACKSIDE_DISABLED", "1")
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(default_run, "event", lambda kind, **fields: events.append((kind, fields)))
    return events


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide PyTorch, which other tests have imported."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("mount needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def steps(checkpoints: Checkpoints) -> list[int]:
    """Return the steps on disk."""
    return [one.step for one in checkpoints.list()]


@pytest.mark.usefixtures("without_torch")
def test_what_is_saved_is_loaded_without_pytorch_too(
    tmp_path: Path, reported: list[tuple[str, dict[str, Any]]]
) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "place")
    assert (checkpoints.load(), checkpoints.step, checkpoints.list(), checkpoints.best("loss")) == (None, 0, [], None)
    assert checkpoints.next_step == 0
    path = checkpoints.save(PLAIN, 7, {"loss": 0.5})
    assert path == tmp_path / "new/place/step-00000007"
    again = Checkpoints(tmp_path / "new" / "place")
    assert (again.load(), again.step) == (PLAIN, 7)
    (saved,) = again.list()
    assert (saved.path, saved.step, saved.metrics) == (path, 7, {"loss": 0.5})
    assert saved.bytes == sum(file.stat().st_size for file in path.iterdir())
    assert (path.parent / "latest").readlink() == Path(path.name)
    (one, fields), (other, more) = reported
    assert (one, other) == ("checkpoint", "resume")
    measured = {name: fields.pop(name) for name in ("seconds", "sequence")}
    assert fields == {"path": str(path), "bytes": saved.bytes, "metrics": {"loss": 0.5}, "step": 7}
    assert measured["sequence"] == pytest.approx(saved.time * 1e6, abs=2)
    assert more == {"path": str(path), "step": 7}
    # The server that forks the process has no PyTorch, as its name is not in the code.
    code = "import sys, trackside; assert trackside.Checkpoints(sys.argv[1]).load()['loss'] == 0.5; assert 'tor' + 'ch' not in sys.modules"
    processes.run([sys.executable, "-c", code, str(path.parent)], check=True)


def test_what_is_saved_beside_tensors_is_loaded_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    held = {"empty": [b"", bytearray(), {b"": frozenset({b"", 1})}], "sets": [frozenset(), {frozenset({2})}], **PLAIN}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({**held, "table": np.zeros((0, 3)), "weights": torch.zeros(1)}, 1)
    loaded = checkpoints.load()
    assert {name: loaded[name] for name in held} == held
    assert (loaded["table"].shape, loaded["table"].dtype) == ((0, 3), np.float64)


def test_the_newest_stay_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, best="accuracy", mode="max")
    for step, accuracy in enumerate((0.1, 0.9, 0.3, float("nan"), 0.2)):
        checkpoints.save({"a": step}, step, {"accuracy": accuracy})
    assert steps(checkpoints) == [1, 3, 4]
    best = checkpoints.best()
    assert best is not None
    assert (best.step, checkpoints.load(step=1)) == (1, {"a": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", *(f"step-{step:08}" for step in (1, 3, 4))]


@pytest.mark.usefixtures("without_torch")
def test_damaged_checkpoints_are_skipped_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, keep=9)
    paths = [checkpoints.save({"a": [step] * 1000}, step) for step in range(6)]
    file = [path / state.PLAIN for path in paths if path is not None]
    (file[5].parent / folder.MANIFEST).unlink()
    os.truncate(file[4], 300)
    flipped = bytearray(file[3].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    file[3].write_bytes(flipped)
    file[2].unlink()
    assert checkpoints.load() == {"a": [1] * 1000}
    observed = [record.getMessage() for record in caplog.records]
    for step, why in (
        (5, "it has no checkpoint.json"),
        (4, "has 300 bytes instead of"),
        (3, "damaged"),
        (2, "no such file"),
    ):
        assert any(f"step-0000000{step} is skipped: " in line and why in line for line in observed), observed
    with pytest.raises(LookupError, match="no intact checkpoint of step 3; the steps there: 0, 1, 2, 3, 4"):
        checkpoints.load(step=3)
    checkpoints.save({"a": 3}, 3)
    assert checkpoints.load(step=3) == {"a": 3}
    assert (tmp_path / "step-00000003.2").is_dir()


def test_what_cannot_be_loaded_again_is_refused_at_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is a object; a checkpoint has numbers"):
        checkpoints.save({"a": [1, object()]}, 1)
    with pytest.raises(TypeError):
        checkpoints.save({}, 1.5)  # type: ignore[arg-type]
    for arguments in ({"keep": 0}, {"mode": "least"}):
        with pytest.raises(ValueError, match=r"keep is 0|mode is 'least'"):
            Checkpoints(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"a": 1}, 1)
    trap = type("Trap", (), {"__reduce__": lambda _: (os.mkdir, (str(tmp_path / "trapped"),))})()
    encoded = state.Encoded({})
    encoded.value = trap
    with (tmp_path / "step-00000001" / state.PLAIN).open("wb") as file:
        state.write(file, encoded)
    about = (tmp_path / "step-00000001" / folder.MANIFEST).read_text()
    size = (tmp_path / "step-00000001" / state.PLAIN).stat().st_size
    before = about.partition(f'"{state.PLAIN}": ')
    (tmp_path / "step-00000001" / folder.MANIFEST).write_text(f"{before[0]}{before[1]}{size}}}}}")
    assert checkpoints.load() is None
    assert not (tmp_path / "trapped").exists()


def test_a_folder_of_a_process_that_cannot_exist_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".writing-{HOST}-{10**30}-step-1"
    left.mkdir()
    Checkpoints(tmp_path).save(PLAIN, 1)
    assert not left.exists()


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Checkpoints(tmp_path).save({"a": 1}, 1) is None
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_line_and_leaves_the_last_one(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(small_disk)
    assert checkpoints.save({"a": b"1" * 500_000}, 1)
    assert checkpoints.save({"a": b"1" * 5_000_000}, 2) is None  # seen before it is written
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the checkpoint of step 2 is not saved" in line
    assert line.endswith("MiB are free; the last one is of step 1, and training goes on")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trackside.checkpoints.checkpoints._require_room", lambda *_: None)
        assert checkpoints.save({"a": b"1" * 5_000_000}, 3) is None  # seen while it is written
    assert "no space left on device" in caplog.records[-1].getMessage()
    assert (checkpoints.load()["a"][:1], checkpoints.step) == (b"1", 1)
    assert sorted(path.name for path in small_disk.iterdir()) == ["latest", "step-00000001"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert checkpoints.save({"a": 1}, 4) is None
    assert "read-only file system" in caplog.records[-1].getMessage()
    assert (checkpoints.load()["a"][:1], checkpoints.step) == (b"1", 1)
    assert SPARE_BYTES < 3 * 2**20


def saved(checkpoints: Checkpoints, *all_steps: int, **metrics: float) -> None:
    """Save steps, each of which has to be there and to be what is loaded then."""
    for step in all_steps:
        path = checkpoints.save({"step": step, "id": id(checkpoints)}, step, metrics)
        assert path is not None
        assert (path.is_dir(), (path.parent / "latest").resolve() == path.resolve()) == (True, True)
        assert Checkpoints(checkpoints.directory).load() == {"step": step, "id": id(checkpoints)}


def test_the_newest_is_the_one_that_was_saved_last_whatever_its_step(tmp_path: Path) -> None:
    saved(Checkpoints(tmp_path), 1000, 2000, 3000)
    new = Checkpoints(tmp_path, keep=2)
    saved(new, 100)
    assert steps(new) == [3000, 100]
    saved(new, 200, 100)
    assert steps(new) == [200, 100]


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_damaged_neither_counts_nor_pushes_out_what_is_intact(tmp_path: Path, keep: int) -> None:
    saved(Checkpoints(tmp_path), 1000, 2000, 3000)
    file = tmp_path / "step-00003000" / state.PLAIN
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    checkpoints = Checkpoints(tmp_path, keep=keep)
    assert (checkpoints.load()["step"], checkpoints.step) == (2000, 2000)
    saved(checkpoints, 2100)
    intact = [one.step for one in checkpoints.list() if not folder.defect(one.path)]
    assert intact == [2000, 2100][-keep:]
    saved(checkpoints, 2200, 2300)
    assert steps(checkpoints) == [2200, 2300][-keep:]


@pytest.mark.usefixtures("without_torch")
def test_the_best_is_gone_back_to(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, best="loss")
    saved(checkpoints, 1000, loss=0.1)
    saved(checkpoints, 2000, 3000, loss=0.5)
    best = checkpoints.best()
    assert best is not None
    checkpoints.load(path=best.path)
    saved(checkpoints, 1100, 1000, loss=0.3)  # the step of the best again
    assert (checkpoints.best(), steps(checkpoints)) == (best, [1000, 1000])
    assert checkpoints.load(step=1000)
    assert checkpoints.list()[-1].path.name == "step-00001000.2"
    assert checkpoints.load(path=best.path)
    with pytest.raises(LookupError, match=r"no intact checkpoint step-00003000; the steps there: 1000, 1000"):
        checkpoints.load(path=tmp_path / "step-00003000")
    os.truncate(best.path / state.PLAIN, 10)
    saved(checkpoints, 1200, loss=0.4)
    assert [one.metrics["loss"] for one in checkpoints.list()] == [0.3, 0.4]


@pytest.mark.parametrize("older", [False, True], ids=["", "an older version"])
@pytest.mark.parametrize("moved", [-86400.0, 86400.0])
def test_the_order_of_saving_survives_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: float, older: bool
) -> None:
    with monkeypatch.context() as patch:
        now = time.time() - moved
        patch.setattr(time, "time", lambda: now)
        saved(Checkpoints(tmp_path), 30, 20)
        for one in folder.folders(tmp_path) if older else ():
            about = json.loads((one.path / folder.MANIFEST).read_bytes())
            del about["sequence"], about["writer"]
            about["time"] += one.path.name.endswith("20")
            (one.path / folder.MANIFEST).write_text(json.dumps(about))
    checkpoints = Checkpoints(tmp_path)
    assert steps(checkpoints) == [30, 20]
    saved(checkpoints, 10)
    assert steps(checkpoints) == [30, 20, 10]


def test_what_the_link_names_stays_while_it_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    saved(checkpoints, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: os.open(tmp_path / "absent", os.O_RDONLY))
        for step in (2, 3):
            assert checkpoints.save({"step": step}, step)
    assert (steps(checkpoints), checkpoints.load()) == ([1, 3], {"step": 3})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(
        "latest names an earlier checkpoint than step-00000002, and cannot be replaced: no such file or directory"
    )
    assert not list(tmp_path.glob(".*"))
    saved(checkpoints, 4)
    assert steps(checkpoints) == [4]


def test_the_newest_is_loaded_while_another_training_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Checkpoints(tmp_path, keep=1)
    other.save({"step": 1}, 1)
    defect = folder.defect

    def deleted_first(path: Path) -> str:
        if path.name.endswith("1"):
            other.save({"step": 2}, 2)
        return defect(path)

    monkeypatch.setattr(folder, "defect", deleted_first)
    assert Checkpoints(tmp_path).load() == {"step": 2}


def test_the_newest_of_another_training_that_saves_here_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(Checkpoints(tmp_path), 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)  # another process that lives
        saved(Checkpoints(tmp_path, keep=1), 3, 4)
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert steps(checkpoints) == [2, 4]
    saved(checkpoints, 5, 6)
    assert steps(checkpoints) == [4, 6]


def test_what_a_killed_process_left_gives_its_room_back_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the process that starts next has the number of the killed one."""
    left = [tmp_path / f".writing-{HOST}-{os.getpid()}-step-00000001{end}" for end in ("", ".7")]
    for path in left:
        path.mkdir()
    there: list[bool] = []
    monkeypatch.setattr(
        "trackside.checkpoints.checkpoints._require_room", lambda *_: there.extend(path.exists() for path in left)
    )
    saved(Checkpoints(tmp_path), 2)
    assert there == [False, False]


def test_a_directory_that_cannot_be_listed_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(tmp_path / "file")
    assert (checkpoints.load(), checkpoints.save({"a": 1}, 1)) == (None, None)
    lines = [record.getMessage() for record in caplog.records]
    assert "file is skipped: not a directory" in lines[0]
    assert "the checkpoint of step 1 is not saved" in lines[1]


def test_a_training_s_state_is_loaded_into_its_objects(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")

    def made(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 9])
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    live = made(1)
    for _ in range(2):
        live["model"](torch.randn(8, 4)).sum().backward()
        live["optimizer"].step()
        live["scheduler"].step()
    wrapped = torch.nn.DataParallel(live["model"])
    more = {"model": wrapped, "table": np.arange(6.0).reshape(2, 3), "norm": np.float64(2.5), "kind": torch.bfloat16}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({**live, **more}, 2)
    drawn = random.random(), np.random.random(), torch.rand(1).item()
    fresh = made(2)
    kept = checkpoints.load(fresh)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == drawn
    for name, value in live["model"].state_dict().items():
        assert torch.equal(fresh["model"].state_dict()[name], value)
    assert fresh["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01)
    moments = fresh["optimizer"].state[fresh["model"][0].weight]["exp_avg"]
    assert torch.equal(moments, live["optimizer"].state[live["model"][0].weight]["exp_avg"])
    assert fresh["scheduler"].milestones == Counter([1, 9])
    assert np.array_equal(kept["table"], more["table"])
    assert (kept["norm"], kept["kind"], checkpoints.step) == (2.5, torch.bfloat16, 2)
    checkpoints.save(torch.nn.DataParallel(live["model"]).state_dict(), 3)  # a prefix of the user's own
    checkpoints.load(fresh["model"])
    with pytest.raises(KeyError, match="the checkpoint has no 'ema'"):
        checkpoints.load({"ema": fresh["model"]}, step=2)


SHARDED = """
import sys, torch, trackside
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo")
rank = distributed.get_rank()

def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1), "epoch": 3}

live = made(1)
live["model"](torch.randn(4, 6)).sum().backward()
live["optimizer"].step()
checkpoints = trackside.Checkpoints(sys.argv[1])
checkpoints.save(live, 5)
torch.manual_seed(rank)
checkpoints.save(live, 6)
drawn = torch.rand(1)
other = made(2)
kept = checkpoints.load(other)
assert torch.equal(torch.rand(1), drawn)
assert (kept["epoch"], checkpoints.step) == (3, 6)
for one, two in zip(live["model"].parameters(), other["model"].parameters()):
    assert torch.equal(one.to_local(), two.to_local())
    moments = [each["optimizer"].state[p]["exp_avg"].to_local() for each, p in ((live, one), (other, two))]
    assert torch.equal(*moments)
trackside.finish()
distributed.destroy_process_group()
"""


def test_any_error_of_the_first_rank_is_raised_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    boxes: list[list[Any]] = []
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", boxes.append)
    with pytest.raises(OSError, match="ZeroDivisionError: division by zero"):
        sharded.from_first(lambda: 1 / 0)
    assert boxes == [[None, "ZeroDivisionError: division by zero"]]


def test_ranks_of_fsdp_save_and_load_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "TRACKSIDE_DISABLED": "1"}
    ranks = [
        processes.start(
            [sys.executable, "-W", "ignore", "-c", SHARDED, str(tmp_path)],
            env=clean_environ({**environ, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}),
        )
        for rank in range(2)
    ]
    assert [rank.wait(DEADLINE) for rank in ranks] == [0, 0]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("step-00000006/**/*") if path.is_file())
    assert [Path(name).name for name in names] == [
        *("checkpoint.json", "random-0.pt", "random-1.pt", ".metadata", "__0_0.distcp", "__1_0.distcp", "state.zip"),
    ]
    assert steps(Checkpoints(tmp_path)) == [5, 6]


def test_a_loop_that_saves_its_own_step_goes_on_behind_it_also_behind_step_0(tmp_path: Path) -> None:
    for begin in (0, 1, 2):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.load()
        assert checkpoints.next_step == begin
        checkpoints.save({"a": begin}, begin)
        assert (checkpoints.step, checkpoints.next_step) == (begin, begin + 1)
