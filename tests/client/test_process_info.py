"""Facts that a process reports about itself and its software."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from client.messages import forget_process_info
from processes import DEADLINE

from trackside.environment import process_info as info_module
from trackside.environment.process_info import (
    COMMAND_BYTES,
    PACKAGES,
    VARIABLES,
    command,
    environ,
    is_interactive,
    packages,
    process_info,
)
from trackside.packing import writable
from trackside.wire import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def unknown() -> Iterator[None]:
    """Nothing is known of the process, before a test and after it."""
    forget_process_info()
    yield
    forget_process_info()


def module(name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


def versions(**modules: Any) -> dict[str, str]:
    return packages(modules)


def test_a_process_reports_its_command_its_directory_its_interpreter_and_its_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--lr", "0.1"])
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])  # outside of any repository
    monkeypatch.chdir(tmp_path)
    found = process_info()
    assert (found.command, found.directory) == (("python", "train.py", "--lr", "0.1"), str(tmp_path))
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.platform == f"Linux {os.uname().release} {os.uname().machine}"
    assert found.packages["msgspec"] == msgspec.__version__
    assert found.git_dirty is None


def test_variables_that_change_the_speed_are_stored_without_secrets() -> None:
    found = environ({"PATH": "/bin", "OMP_NUM_THREADS": "4", "NCCL_X": "password=hunter2abc", "NCCL_ALGO": "R" * 999})
    assert list(found) == ["NCCL_ALGO", "NCCL_X", "OMP_NUM_THREADS"]
    assert found["OMP_NUM_THREADS"] == "4"
    assert "hunter2abc" not in found["NCCL_X"]
    assert len(found["NCCL_ALGO"]) == 256
    assert len(environ({f"CUDA_{number}": "" for number in range(100)})) == VARIABLES


def test_it_is_found_out_once_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = process_info()
    monkeypatch.chdir(tmp_path)
    assert process_info() is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert process_info().directory == str(tmp_path)


def test_the_longest_of_everything_fits_and_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["я" * 5000] * 100)
    monkeypatch.setattr(sys, "version", "3.11.7+" + "x" * 1000)
    monkeypatch.setattr(Path, "cwd", lambda: "/caf\udce9/" + "я" * 5000)
    found = process_info()
    msgspec.msgpack.encode(found)
    assert len(found.directory.encode()) in {4095, 4096}
    assert found.directory.startswith("/caf?/я")
    assert len(found.python) == 64
    assert COMMAND_BYTES - 4 < sum(len(one.encode()) + 1 for one in found.command) <= COMMAND_BYTES + 1


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["a", "b"], ("a", "b")),
        ([], ()),
        (["a" * COMMAND_BYTES], ("a" * COMMAND_BYTES,)),
        (["a" * (COMMAND_BYTES + 1), "b"], ("a" * COMMAND_BYTES,)),
        (["a" * (COMMAND_BYTES - 2), "bc", "d"], ("a" * (COMMAND_BYTES - 2), "b")),
        ([""] * (COMMAND_BYTES + 5), ("",) * COMMAND_BYTES),
        (["caf\udce9"], ("caf?",)),
    ],
)
def test_a_command_is_cut_where_it_grows_too_long(arguments: list[str], kept: tuple[str, ...]) -> None:
    assert command(arguments) == kept


def test_packages_come_by_name_with_what_they_call_their_version() -> None:
    class Version(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "something else"

    assert list(
        versions(
            torch=module("torch", __version__=Version("2.13.0+cu130")),
            numpy=module("numpy", __version__="2.1"),
            long=module("long", __version__="1" * 65),
            odd=module("odd", __version__="caf\udce9"),
        ).items()
    ) == [("long", "1" * 64), ("numpy", "2.1"), ("odd", "caf?"), ("torch", "2.13.0+cu130")]


def test_what_has_no_version_and_what_comes_with_python_is_no_package() -> None:
    assert not versions(
        plain=module("plain"),
        number=module("number", __version__=2),
        parts=module("parts", __version__=(1, 2)),
        blank=module("blank", __version__=""),
        json=module("json", __version__="2.0.9"),
        nothing=None,
        something=object(),
        text="1.0",
        **{"torch.nn": module("torch.nn", __version__="1.0"), "n" * 257: module("n", __version__="1.0")},
    )


class Trap(ModuleType):
    """A module that fails on access to any attribute."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


class Proxy:
    """An object that is no module and fails on access to any attribute."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def test_a_module_that_waits_to_be_used_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("sleeper")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sleeper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sleeper)
    trap = Trap("trap")
    object.__getattribute__(trap, "__dict__")["__version__"] = "1.5"
    lazy = module("lazy", __version__=Proxy(), __getattr__=pytest.fail)
    found = versions(sleeper=sleeper, trap=trap, lazy=lazy, proxy=Proxy(), empty=ModuleType.__new__(ModuleType))
    assert found == {"trap": "1.5"}


def test_of_very_many_packages_those_imported_first_are_reported() -> None:
    many = {f"p{number:04}": module("p", __version__="1") for number in range(PACKAGES + 50)}
    assert list(packages(dict(reversed(many.items())))) == sorted(many)[50:]


def test_packages_can_be_listed_while_others_import(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {f"p{number}": module("p", __version__="1") for number in range(10)}

    def importing(text: str) -> str:
        modules[f"new{len(modules)}"] = module("new")
        return writable(text)

    monkeypatch.setattr(info_module, "writable", importing)
    assert len(packages(modules)) == 10


IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-0"}


@pytest.fixture
def in_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a minimal pod; returns the path of its service account's namespace."""
    for name in [name for name in os.environ if re.search("POD|NAMESPACE|CONTAINER|KUBERNETES", name)]:
        monkeypatch.delenv(name)
    for name, value in IN_A_POD.items():
        monkeypatch.setenv(name, value)
    account = tmp_path / "namespace"
    monkeypatch.setattr(info_module.namespace, "__defaults__", (account,))
    return account


def where() -> tuple[str, str, str]:
    """Return pod, namespace and container."""
    forget_process_info()
    found = process_info()
    return found.k8s_pod, found.k8s_namespace, found.k8s_container


def test_a_pod_is_identified_by_its_host_name_and_its_account(in_a_pod: Path) -> None:
    assert where() == ("train-0", "", "")
    in_a_pod.write_text("ml\n")
    assert where() == ("train-0", "ml", "")


def test_facts_of_the_manifest_count_before_observed_ones(in_a_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_pod.write_text("ml")
    for prefix in ("MY_POD", "K8S_POD", "POD"):
        monkeypatch.setenv(f"{prefix}_NAME", f"by {prefix}")
        monkeypatch.setenv(f"{prefix}_NAMESPACE", f"of {prefix}")
        assert where()[:2] == (f"by {prefix}", f"of {prefix}")
    for name in ("K8S_CONTAINER_NAME", "CONTAINER_NAME"):
        monkeypatch.setenv(name, name)
        assert where()[2] == name


def test_outside_of_kubernetes_these_names_mean_nothing(in_a_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_pod.write_text("ml")
    for name in ("POD_NAME", "POD_NAMESPACE", "CONTAINER_NAME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert where() == ("", "", "")


def test_names_of_a_pod_are_cut_and_can_be_written(in_a_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_pod.write_bytes(b"\xff" + b"n" * 10**6)
    monkeypatch.setenv("POD_NAME", "p" * 300)
    monkeypatch.setenv("CONTAINER_NAME", "caf\udce9")
    msgspec.msgpack.encode(process_info())
    name, namespace, container = where()
    assert (name, container) == ("p" * 253, "caf?")
    assert len(namespace.encode()) == 253


def test_the_launcher_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKSIDE_LAUNCH", "0123456789abcdef")
    assert process_info().launch == "0123456789abcdef"


def fail(*_: object) -> Any:
    raise RuntimeError


@pytest.mark.parametrize(
    ("field", "where", "name", "value"),
    [
        ("command", sys, "orig_argv", None),
        ("command", sys, "orig_argv", [1]),
        ("directory", Path, "cwd", fail),
        ("python", sys, "version", None),
        ("platform", os, "uname", fail),
        ("packages", info_module, "packages", fail),
        ("environ", info_module, "environ", fail),
        ("git_dirty", info_module, "dirty", fail),
        ("k8s_pod", info_module, "pod", fail),
        ("k8s_namespace", info_module, "namespace", fail),
        ("k8s_container", info_module, "container", fail),
    ],
)
@pytest.mark.usefixtures("in_a_pod")
def test_what_cannot_be_found_out_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, field: str, where: object, name: str, value: object
) -> None:
    monkeypatch.setattr(info_module, "dirty", lambda _: False)
    monkeypatch.setenv("POD_NAMESPACE", "ml")
    monkeypatch.setenv("CONTAINER_NAME", "main")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole = msgspec.structs.asdict(process_info())
    forget_process_info()
    monkeypatch.setattr(where, name, value)
    rest = msgspec.structs.asdict(process_info())
    assert rest.pop(field) == msgspec.structs.asdict(ProcessInfo())[field] != whole.pop(field)
    assert rest == whole


def test_a_working_directory_that_is_gone_and_no_script_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", [])
    found = process_info()
    monkeypatch.chdir(tmp_path)
    assert (found.directory, found.git_dirty) == ("", None)
    assert found.python


def test_the_first_session_of_a_script_knows_how_long_its_process_took_to_start_it() -> None:
    code = """
        import os, sys, time
        time.sleep(0.2)
        from trackside.environment.clocks import read_clocks
        from trackside.environment.process_info import startup
        first, again = startup(read_clocks()), startup(read_clocks())
        print(first >= 200_000_000, again, flush=True)
        if os.fork() == 0:
            print(startup(read_clocks()) < first, flush=True)
            os._exit(0)
        os.wait()
        """
    for before, printed in (("", "True 0\nTrue\n"), ("import sys; sys.ps1 = '>>> '\n", "False 0\nFalse\n")):
        done = subprocess.run(
            [sys.executable, "-c", before + dedent(code)], capture_output=True, text=True, check=True, timeout=DEADLINE
        )
        assert done.stdout == printed


def test_a_program_that_starts_the_kernels_of_notebooks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))  # as nbclient imports it
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    assert not is_interactive()
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", ModuleType("kernelapp"))
    assert is_interactive()
