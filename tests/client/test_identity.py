"""The identity of a process, from the environment that its launcher sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.repository import Repository

from trackside.environment import identity as identity_module
from trackside.environment.identity import identify

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets ``sys.argv`` as if Python had been started with these arguments."""

    def start(*argv: str) -> None:
        monkeypatch.setattr(sys, "argv", list(argv))

    return start


def test_a_plain_process_is_alone_and_its_run_has_an_id_of_its_own() -> None:
    first, second = identify(environ={}), identify(environ={})
    assert (first.rank, first.local_rank, first.world, first.local_world) == (0, 0, 1, 1)
    assert (first.attempt, first.job_id, first.gpus) == (0, "", ())
    assert len(first.run) == 12
    assert first.run != second.run


def test_a_process_is_identified_by_pid_start_time_and_boot() -> None:
    identity = identify(environ={})
    assert (identity.pid, identity.host) == (os.getpid(), os.uname().nodename)
    assert identity.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert identity.start == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert identity.start > 0


def test_without_proc_its_facts_are_left_out(tmp_path: Path) -> None:
    identity = identify(environ={}, proc=tmp_path)
    assert (identity.start, identity.boot) == (0, "")


def test_a_command_with_brackets_and_blanks_in_its_name_has_a_start_time(tmp_path: Path) -> None:
    directory = tmp_path / "self"
    directory.mkdir()
    fields = ["S", *(str(number) for number in range(4, 53))]
    (directory / "stat").write_text(f"{os.getpid()} (a) (b c) {' '.join(fields)}\n")
    assert identify(environ={}, proc=tmp_path).start == 22
    (directory / "stat").write_text("nonsense")
    assert identify(environ={}, proc=tmp_path).start == 0
    (directory / "stat").write_bytes(b"1 (\xff\xfe) S")
    assert identify(environ={}, proc=tmp_path).start == 0


def test_what_is_given_comes_before_the_environment_and_that_before_the_launcher(script: Callable[..., None]) -> None:
    script("train.py")
    launcher = {"RANK": "0", "TORCHELASTIC_RUN_ID": "job-17"}
    environ = {**launcher, "TRACKSIDE_RUN_ID": "from outside", "TRACKSIDE_RUN_NAME": "outside"}
    own = identify("mine", "my id", environ)
    assert (own.name, own.run) == ("mine", "my id")
    outside = identify(environ=environ)
    assert (outside.name, outside.run) == ("outside", "from outside")
    neither = identify("", "", {**environ, "TRACKSIDE_RUN_ID": "", "TRACKSIDE_RUN_NAME": ""})
    assert (neither.name, neither.run) == ("train", "torchrun-job-17")


@pytest.mark.parametrize(("name", "run"), [("fold-1", "from outside"), ("fold-2", "torchrun-job-17")])
def test_only_the_run_of_this_name_continues_after_a_restart(name: str, run: str) -> None:
    """A command of several runs may have ended in its first."""
    environ = {"RANK": "0", "TORCHELASTIC_RUN_ID": "job-17", "TRACKSIDE_RUN_ID": "from outside"}
    assert identify(name, environ={**environ, "TRACKSIDE_RESTARTED_RUN": "fold-1"}).run == run


def test_a_name_or_id_of_another_type_is_its_text() -> None:
    name: Any = Path("a/b")
    run: Any = 17
    identity = identify(name, run, environ={})
    assert (identity.name, identity.run) == ("a/b", "17")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["train.py"], "train"),
        (["/home/me/my run.v2.py", "--lr", "0.1"], "my run.v2"),
        (["/opt/code/mypackage/__main__.py"], "mypackage"),
        (["/usr/bin/train"], "train"),
        (["/site-packages/ipykernel_launcher.py", "-f", "kernel.json"], "notebook"),
        ([""], "resnet"),
        (["-"], "resnet"),
        (["-c"], "resnet"),
        (["-m"], "resnet"),
        ([], "resnet"),
        (["."], "resnet"),
        (["__main__.py"], "resnet"),
        (["/data/caf\udce9.py"], "caf?"),
    ],
)
def test_without_a_name_a_run_is_called_as_its_script_or_the_directory_of_one_that_python_reads(
    script: Callable[..., None], argv: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resnet").mkdir()
    monkeypatch.chdir(tmp_path / "resnet")
    script(*argv)
    assert identify(environ={}).name == name
    assert identify(environ={"SLURM_JOB_ID": "9"}).name == f"{name}-9"


def test_without_a_script_and_a_directory_a_run_is_called_python(
    script: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("-c")
    monkeypatch.chdir("/")
    assert identify(environ={}).name == "python"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert identify(environ={}).name == "python"


@pytest.mark.parametrize(
    ("visible", "local_rank", "gpus"),
    [
        ("", "0", ("none",)),
        ("-1", "0", ("none",)),
        ("NoDevFiles", "0", ("none",)),
        ("0", "0", ("0",)),
        ("0,1,2,3", "1", ("1",)),
        ("6, 7", "1", ("7",)),
        ("0,-1,2", "0", ("0",)),
        ("0,-1,2", "2", ("0",)),
        ("1,1", "0", ("none",)),
        ("GPU-aa", "0", ("GPU-aa",)),
        ("GPU-aa,GPU-bb", "1", ("GPU-bb",)),
        (" GPU-aa , GPU-bb ", "0", ("GPU-aa",)),
        ("GPU-aa", "3", ("GPU-aa",)),
        ("MIG-cc,MIG-dd", "1", ("MIG-dd",)),
        ("MIG-GPU-aa/1/0", "0", ("MIG-GPU-aa/1/0",)),
    ],
)
def test_the_gpus_are_those_that_the_environment_gives_and_of_several_the_local_ranks(
    visible: str, local_rank: str, gpus: tuple[str, ...]
) -> None:
    assert identify(environ={"CUDA_VISIBLE_DEVICES": visible, "LOCAL_RANK": local_rank}).gpus == gpus


def test_an_index_that_follows_the_bus_reports_so_and_a_uuid_is_as_it_is() -> None:
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert identify(environ={**by_bus, "CUDA_VISIBLE_DEVICES": "3"}).gpus == ("PCI-3",)
    assert identify(environ={**by_bus, "CUDA_VISIBLE_DEVICES": "GPU-aa"}).gpus == ("GPU-aa",)
    assert identify(environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "3"}).gpus == ("3",)


def test_the_framework_is_the_one_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert identity_module.framework() == ""
    monkeypatch.setitem(sys.modules, "jax", type(sys)("jax"))
    assert identity_module.framework() == "jax"
    torch = type(sys)("torch")
    torch.__version__ = "2.13.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert identify(environ={}).framework == "torch 2.13.0"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert identify(environ={}).framework == "torch"


@pytest.fixture
def repository(tmp_path: Path, script: Callable[..., None]) -> Repository:
    made = Repository(tmp_path / "repository")
    script(str(made.folder / "deep" / "er" / "train.py"))
    return made


def commit_now() -> str:
    return identify(environ={}).git_commit


def test_the_commit_around_the_script_is_found_on_any_branch_also_when_references_are_packed(
    repository: Repository,
) -> None:
    assert commit_now() == ""
    first = repository.commit()
    assert len(first) == 40
    assert commit_now() == first
    repository.git("tag", "-a", "v1", "-m", "annotated: its line in packed-refs is followed by one more")
    repository.git("pack-refs", "--all")
    assert not (repository.folder / ".git/refs/heads/main").exists()
    assert commit_now() == first
    repository.git("checkout", "--quiet", "-b", "feature/deep/branch")
    second = repository.commit()
    assert commit_now() == second != first
    repository.git("checkout", "--quiet", "--detach", first)
    assert commit_now() == first


def test_the_commit_is_found_in_a_worktree_also_with_packed_references(
    repository: Repository, tmp_path: Path, script: Callable[..., None]
) -> None:
    first = repository.commit()
    repository.git("worktree", "add", "--quiet", "-b", "other", str(tmp_path / "worktree"))
    second = repository.commit()
    assert commit_now() == second
    script(str(tmp_path / "worktree" / "deep" / "er" / "train.py"))
    assert commit_now() == first
    repository.git("pack-refs", "--all")
    assert commit_now() == first


def test_the_commit_of_a_submodule_is_its_own(
    repository: Repository, tmp_path: Path, script: Callable[..., None]
) -> None:
    inner = Repository(tmp_path / "inner").commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(tmp_path / "inner"), "sub")
    outer = repository.commit()
    assert commit_now() == outer
    script(str(repository.folder / "sub" / "deep" / "er" / "train.py"))
    assert commit_now() == inner


def test_without_a_script_the_commit_around_the_working_directory_is_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, script: Callable[..., None]
) -> None:
    commit = repository.commit()
    monkeypatch.chdir(repository.folder / "deep")
    for argv in ([""], ["-c"], []):
        script(*argv)
        assert commit_now() == commit
    script("er/train.py")
    assert commit_now() == commit


@pytest.mark.parametrize("damage", ["HEAD", "refs/heads/main"])
def test_a_damaged_repository_has_no_commit_and_raises_nothing(repository: Repository, damage: str) -> None:
    repository.commit()
    path = repository.folder / ".git" / damage
    path.write_bytes(b"\xff\xfe\0")
    assert commit_now() == ""
    path.unlink()
    assert commit_now() == ""
    (repository.folder / ".git/packed-refs").write_text("\n# pack-refs\n^abc\n\n")
    assert commit_now() == ""


def test_a_git_file_that_leads_nowhere_is_no_repository(tmp_path: Path, script: Callable[..., None]) -> None:
    (tmp_path / "train.py").touch()
    script(str(tmp_path / "train.py"))
    for text in ("", "gitdir:", "gitdir: /nowhere/at/all", "gitdir: \0"):
        (tmp_path / ".git").write_text(text)
        assert commit_now() == ""


def test_a_working_directory_that_is_gone_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[..., None]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for argv in (["train.py"], ["-c"], []):
        script(*argv)
        assert commit_now() == ""
    monkeypatch.chdir(tmp_path)


class RayContext:
    """The contexts of Ray that a worker of Train or Tune sees."""

    get_runtime_context = get_context = lambda self: self

    def get_session_name(self) -> str:
        return "session_2026-11-23_18-13-53_856808_28468"

    def get_experiment_name(self) -> str:
        return "linear"

    def get_trial_name(self) -> str:
        return "objective_c5ed5_00001"

    def get_trial_id(self) -> str:
        return "c5ed5_00001"


def test_a_worker_of_ray_has_the_name_of_its_experiment_or_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ray", "ray.train", "ray.tune"):
        monkeypatch.setitem(sys.modules, module, RayContext())
    worker = {"RAY_JOB_ID": "01000000"}
    ranks = {**worker, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    train = identify(environ=ranks)
    assert (train.name, train.run, train.rank) == ("linear", "ray-2026-11-23_18-13-53_856808_28468-linear", 1)
    tune = identify(environ={**worker, "TUNE_ORIG_WORKING_DIR": "/"})
    assert (tune.name, tune.run) == ("objective_c5ed5_00001", "ray-c5ed5_00001")
    assert identify(environ={}).name != "linear", "the driver is no worker"
    monkeypatch.delattr(RayContext, "get_experiment_name")
    assert identify(environ=worker).run != train.run, "a task of the user's own"
