"""The fake driver in C, under the unmodified pynvml in a separate worker."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest
from processes import DEADLINE, ROOT

from trackside_daemon.nvml.handle.handle import Nvml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml.fake.library import Scenario

LONG = DEADLINE
"""Timeout in seconds for immediate answers, on a machine that is busy with other tests."""


@pytest.fixture
def nvml(scenario: Scenario) -> Iterator[Nvml]:
    handle = Nvml()
    yield handle
    handle.close()


def test_its_structures_are_as_large_as_those_of_pynvml(nvml_library: Path) -> None:
    library, name, place = ctypes.CDLL(str(nvml_library)), ctypes.c_char_p(), 0
    while size := library.fake_size(place, ctypes.byref(name)):
        assert name.value is not None
        assert (name.value, size) == (name.value, ctypes.sizeof(getattr(pynvml, name.value.decode())))
        place += 1
    assert place > 20


def test_it_has_every_function_that_a_reader_of_ours_calls(nvml_library: Path) -> None:
    library = ctypes.CDLL(str(nvml_library))
    source = Path(pynvml.__file__).read_text()
    called = set()
    for path in (ROOT / "daemon" / "trackside_daemon" / "nvml").rglob("*.py"):
        called |= set(re.findall(r"nvml\.(nvml[A-Z]\w+)\(", path.read_text()))
    assert called
    for wrapper in called:
        body = re.search(rf"^def {wrapper}\(.*?(?=^def )", source, re.MULTILINE | re.DOTALL)
        assert body is not None, wrapper
        names = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', body[0])
        assert not names or any(hasattr(library, name) for name in names), wrapper


def test_the_real_worker_reads_what_the_scenario_reports(nvml: Nvml, scenario: Scenario) -> None:
    first, second = nvml.read(LONG).gpus
    assert (first.index, first.uuid) == (0, "GPU-5fd4f087-86f3-1f4a-1e6e-4c8a3b6d9e00")
    assert (second.index, second.uuid) == (1, "GPU-5fd4f087-86f3-1f4a-1e6e-4c8a3b6d9e01")
    assert first.info["name"] == "NVIDIA H100 80GB HBM3"
    assert ("temperature_celsius", ("gpu",), 61) in first.values
    scenario.set("1 nvmlDeviceGetTemperature 40")
    first, second = nvml.read(LONG).gpus
    assert ("temperature_celsius", ("gpu",), 61) in first.values
    assert ("temperature_celsius", ("gpu",), 40) in second.values
