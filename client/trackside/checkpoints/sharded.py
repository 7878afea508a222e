"""Models whose ranks have different parts (FSDP): all ranks save and load together, by torch.distributed.checkpoint.

Every function is a collective: all ranks call it, and an error on one of them is raised on all as an `OSError`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trackside.checkpoints import state
from trackside.checkpoints.folder import CheckpointWriter
from trackside.os_errors import os_error_text

FOLDER = "shards"

T = TypeVar("T")


def is_sharded(live: Any) -> bool:
    """Return whether a state is a mapping with a model that FSDP has sharded; no collective."""
    return isinstance(live, Mapping) and any(map(_is_sharded_model, live.values()))


def others(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is the same on all ranks: all but the model and its optimizers; no collective."""
    return {name: part for name, part in live.items() if not (_is_sharded_model(part) or hasattr(part, "param_groups"))}


def save(directory: Path, step: int, live: Mapping[str, Any], finish: Callable[[CheckpointWriter], T]) -> T:
    """Save a checkpoint; the first rank makes its folder and calls *finish*, whose result is returned on all."""
    writers: list[CheckpointWriter] = []

    def begin() -> str:
        writers.append(CheckpointWriter(directory, step))
        return str(writers[0].path)

    path = Path(from_first(begin))
    try:
        _on_all(lambda: _write(path, live))
        return from_first(lambda: finish(writers[0]))
    except OSError:
        for writer in writers:
            writer.discard()
        raise


def load(path: Path, into: Mapping[str, Any]) -> None:
    """Load each rank's part of a checkpoint into its model and optimizers."""
    _on_all(lambda: _read(path, into))


def from_first(make: Callable[[], T]) -> T:
    """Return on all ranks what *make* returns on the first."""
    from torch import distributed

    box: list[Any] = [None, ""]
    if distributed.get_rank() == 0:
        try:
            box = [make(), ""]
        except Exception as error:  # noqa: BLE001  the other ranks wait for the outcome, whatever it is
            box = [None, _problem(error)]
    distributed.broadcast_object_list(box)
    if box[1]:
        raise OSError(box[1])
    made: T = box[0]
    return made


def _on_all(work: Callable[[], None]) -> None:
    from torch import distributed

    problem = ""
    try:
        work()
    except Exception as error:  # noqa: BLE001  the other ranks wait for the outcome, whatever it is
        problem = _problem(error)
    outcomes: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(outcomes, problem)
    if any(outcomes):
        raise OSError(next(filter(None, outcomes)))


def _problem(error: Exception) -> str:
    """Return an error in one line."""
    return os_error_text(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _write(path: Path, live: Mapping[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(_states(live)[0], checkpoint_id=path / FOLDER)
    with _random_file(path).open("wb") as file:
        state.write(file, state.Encoded(state.random_states()))


def _read(path: Path, into: Mapping[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    states, model, optimizers = _states(into)
    dcp.load(states, checkpoint_id=path / FOLDER)
    set_state_dict(model, optimizers, model_state_dict=states["model"], optim_state_dict=states["optimizers"])
    if (random := _random_file(path)).exists():  # not with more ranks than before
        state.restore_random(state.read(random))


def _random_file(path: Path) -> Path:
    from torch import distributed

    return path / f"random-{distributed.get_rank()}.pt"


def _states(live: Mapping[str, Any]) -> tuple[dict[str, Any], Any, list[Any]]:
    """Return the state dicts, the model and its optimizers."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    models = [part for part in live.values() if _is_sharded_model(part)]
    if len(models) > 1:
        raise TypeError(f"{len(models)} sharded models in one state; save each in a directory of its own")
    optimizers = [part for part in live.values() if hasattr(part, "param_groups")]
    of_model, of_optimizers = get_state_dict(models[0], optimizers)
    return {"model": of_model, "optimizers": of_optimizers}, models[0], optimizers


def _is_sharded_model(part: Any) -> bool:
    if not callable(getattr(part, "named_parameters", None)):
        return False
    flat = any(type(module).__name__ == "FullyShardedDataParallel" for module in part.modules())
    return flat or any(hasattr(one, "device_mesh") for one in part.parameters())
