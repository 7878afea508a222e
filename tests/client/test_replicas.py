"""Hashes of what ranks share: each bit counts, all parts of a model get their turn, and who shares a tensor is found."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import unsent_bodies
from client.torch_state import FakeStore
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import trackside
from trackside.auto.models import Models
from trackside.auto.stages import AutoStages
from trackside.pytorch import replicas
from trackside.pytorch.overhead_budget import OverheadBudget
from trackside.pytorch.replicas import ROW, Replicas, tensor_hash
from trackside.wire import Pushes, TensorHash, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def ranks() -> Iterator[Callable[[int, int], None]]:
    """A function that makes this process a rank of so many, whose collectives do nothing."""

    def begin(rank: int, world: int) -> None:
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield begin
    if distributed.is_initialized():
        distributed.destroy_process_group()


def hashes(values: torch.Tensor) -> tuple[int, int]:
    return tuple(int(tensor_hash(torch, values, {}, columns=columns)) for columns in (False, True))  # type: ignore[return-value]


def flipped(values: torch.Tensor, *places: tuple[int, int]) -> torch.Tensor:
    """Return a copy of which the bit of a byte is another, of each place."""
    copy = values.clone()
    for byte, bit in places:
        copy.view(torch.uint8)[byte] ^= 1 << bit
    return copy


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
)
@pytest.mark.parametrize("count", [1, 7, 1001, 2 * ROW * 8 + 5])
def test_each_bit_changes_the_hash_and_equal_bits_anywhere_in_memory_have_the_same(dtype: Any, count: int) -> None:
    values = (torch.randn(count) * 3).to(dtype)
    usual, size = hashes(values), values.element_size() * count
    moved = torch.cat([values[:1], values])[1:]  # at another place of its memory
    assert hashes(moved) == usual
    for byte, bit in product({0, size // 2, size - 1}, range(8)):
        other = hashes(flipped(values, (byte, bit)))
        assert other[0] != usual[0]
        assert other[1] != usual[1]


def test_equal_errors_do_not_cancel_each_other_out_along_rows_and_columns() -> None:
    values = torch.zeros(4 * ROW, dtype=torch.int64)
    usual = hashes(values)
    for byte, bit in product((8, 8 * ROW, 8 * ROW + 8), (0, 7)):  # in the same row, in the same column, in neither
        for high in (0, 7):
            other = hashes(flipped(values, (high, bit), (byte + high, bit)))
            assert other[0] != usual[0] or other[1] != usual[1]


def test_the_memory_of_a_tensor_is_hashed_whatever_its_strides_and_no_copy_is_made() -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    parts = [replicas._part(images, part, 2) for part in range(2)]
    assert [part.numel() for part in parts] == [60, 60]
    assert [part.data_ptr() - images.data_ptr() for part in parts] == [0, 240]


def test_expanded_empty_and_single_elements_are_hashed_without_a_copy_of_what_is_expanded() -> None:
    row = torch.randn(8)
    for tensor, count in ((row.expand(1000, 8), 8), (row[::2][:1], 1), (row[:0], 0)):
        part = replicas._part(tensor, 0, 1)
        assert part.numel() == count
        assert replicas.tensor_hash(torch, part, {}, columns=False).dtype == torch.int64
        assert part.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    gaps = torch.arange(80).view(10, 8)[:, :7]
    parts = [replicas._part(gaps, part, 4) for part in range(4)]
    assert torch.cat(parts).tolist() == gaps.flatten().tolist()
    assert all(part.untyped_storage().nbytes() <= 8 * 7 * 4 for part in parts), "not all of it is copied for each part"


class Fixed(OverheadBudget):
    """Chooses each *every*-th step, whatever that costs."""

    def __init__(self, every: int) -> None:
        super().__init__(1.0)
        self.every = every

    def add_cost(self, _: float) -> None:
        pass


def train(model: nn.Module, run: trackside.Run, steps: int, every: int = 1, **more: Any) -> list[TensorHash]:
    """Train a model, and return the hashes that would be sent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = run.watch(model, optimizer, **more)
    if watcher._replicas is not None:
        watcher._replicas._budget = Fixed(every)
    for step in range(steps):
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        run.push(step=10 * step, loss=1.0)
    bodies = [body for body in unsent_bodies(run) if isinstance(body, Pushes)]
    found = [one for body in bodies for one in body.hashes]
    for one in found:
        one.check()
    return found


class Network(nn.Module):  # type: ignore[misc]
    """A network with a large parameter, a frozen one, a batch norm and another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.randn(3 * 2**18))
        self.layer, self.norm = nn.Linear(4, 4).requires_grad_(False), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(2))


def test_all_parts_get_their_turn_at_steps_that_are_a_power_of_two_apart(
    run: trackside.Run, ranks: Callable[[int, int], None]
) -> None:
    ranks(0, 4)
    found = train(DistributedDataParallel(Network()), run, 30, every=4)
    assert [one.count for one in found] == list(range(4, 32, 4))
    # Four tensors of one part, and one of three: a tour of seven places.
    assert {(one.name, one.part) for one in found} == {
        *product(("layer.weight", "layer.bias", "norm.weight", "norm.bias"), (0,)),
        *product(("large",), range(3)),
    }
    assert [one.step for one in found] == [10 * (one.count - 1) for one in found]
    assert {(one.ranks, one.parts) for one in found if one.name == "large"} == {(4, 3)}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"replicas": False}, set()),
        ({}, {"large", "layer.weight", "layer.bias", "norm.weight", "norm.bias"}),
        ({"replicas_except": ["layer", "*.bias"]}, {"large", "norm.weight"}),
    ],
)
def test_parameters_of_ddp_are_compared_except_those_that_are_excluded(
    run: trackside.Run, ranks: Callable[[int, int], None], more: dict[str, Any], names: set[str]
) -> None:
    ranks(1, 2)
    assert {one.name for one in train(DistributedDataParallel(Network()), run, 9, **more)} == names


def test_a_model_without_ddp_is_compared_only_on_request_and_then_with_its_buffers(
    run: trackside.Run, nowhere: str, ranks: Callable[[int, int], None]
) -> None:
    ranks(1, 2)
    assert train(Network(), run, 9) == []
    own = trackside.init(endpoint=nowhere)
    found = train(Network(), own, 12, replicas=True)
    assert {(one.name, one.buffer) for one in found} >= {("large", False), ("seen", True)}
    assert not {one.name for one in found} & {"norm.running_mean", "norm.num_batches_tracked"}


@pytest.mark.filterwarnings("ignore:`broadcast_buffers`:FutureWarning")  # the name that all releases have
def test_buffers_that_ddp_does_not_broadcast_and_parameters_that_it_ignores_are_compared(
    run: trackside.Run, ranks: Callable[[int, int], None]
) -> None:
    ranks(0, 2)
    model = Network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["norm.bias"])
    model = DistributedDataParallel(model, broadcast_buffers=False)
    found = {one.name: one.buffer for one in train(model, run, 12)}
    assert (found["seen"], found["norm.bias"], found["large"]) == (True, False, False)


def test_a_training_without_changes_to_it_is_compared_too(
    run: trackside.Run, ranks: Callable[[int, int], None]
) -> None:
    ranks(0, 2)
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    models = Models()
    models.module_registered(model, "module", model.module)
    stages = AutoStages(run.queue, models, optimizer)
    stages._replicas._budget = Fixed(1)
    for step in range(6):
        optimizer.step()
        run.push(step=step, loss=1.0)
        assert stages.finish_step(step + 1, optimizer) == step + 2
    found = [one for body in unsent_bodies(run) if isinstance(body, Pushes) for one in body.hashes]
    assert [(one.name, one.step) for one in found] == [("weight", 1), ("bias", 2), ("weight", 4)]


def test_a_single_process_has_nothing_to_compare(run: trackside.Run) -> None:
    assert train(Network(), run, 3, replicas=True) == []


def test_dtensors_are_compared_between_the_ranks_with_the_same_part(
    run: trackside.Run, ranks: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: dict[str, dict[int, list[int]]] = {}
    for rank, place in enumerate(product(range(2), range(2))):
        ranks(rank, 4)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda _, place=place: list(place))
        model = nn.Module()
        for name, placements in {
            "hybrid": (Replicate(), Shard(0)),
            "whole": (Replicate(), Replicate()),
            "sharded": (Shard(0), Shard(0)),
            "partial": (Replicate(), Partial()),
        }.items():
            setattr(model, name, nn.Parameter(DTensor.from_local(torch.ones(3), mesh, placements)))
        for one in Replicas(run.queue, [model], lambda work: work())._tensors:
            groups.setdefault(one.name, {}).setdefault(one.group, []).append(rank)
    assert {name: list(members.values()) for name, members in groups.items()} == {
        "hybrid": [[0, 2], [1, 3]],
        "whole": [[0, 1, 2, 3]],
    }


def test_a_tensor_that_cannot_be_hashed_ends_the_comparison_and_not_the_training(
    run: trackside.Run,
    ranks: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks(0, 2)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(replicas, "tensor_hash", fail)
    assert train(DistributedDataParallel(Network()), run, 5) == []
    assert "replicas are no longer compared at large: RuntimeError: no such operator" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_not_compiled_again_for_each_hash(
    run: trackside.Run, ranks: Callable[[int, int], None]
) -> None:
    ranks(0, 2)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compared = replicas.Replicas(run.queue, [model], lambda work: work(), everywhere=True)
    compared._budget = Fixed(2)
    step = torch.compile(optimizer.step, backend="eager")
    compiled = []
    for number in range(1, 10):
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        step()
        compared.step_finished(number, optimizer)
        compiled.append(sys.modules["torch._dynamo.utils"].counters["frames"]["total"])
    assert compiled[0] < compiled[3] == compiled[-1], compiled
    found = [one for body in unsent_bodies(run) if isinstance(body, Pushes) for one in body.hashes]
    assert {one.count for one in found} == {2, 4, 6}


def test_a_hash_with_a_long_name_is_refused() -> None:
    with pytest.raises(WireError, match="the name of a tensor is too long"):
        TensorHash("x" * 513, 0, 1, 1, 1, 2, 3, 4).check()
