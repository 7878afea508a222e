"""The state of a training as plain values and tensors: read from objects, written to a file, and given back to objects.

Loading executes nothing of the file: PyTorch loads weights only, and without PyTorch there are only plain values.
"""

import pickle
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

TORCH, PLAIN = "state.pt", "state.zip"  # the file of a state with tensors, and of one without
MEMBER = "state.pkl"
TENSOR_BYTES = 512  # what a tensor needs in a file in addition to its data

_ARRAY = "trackside array"
# Plain values that `torch.load` refuses with `weights_only`.
_FROZEN, _EMPTY = "trackside frozenset", ("trackside empty bytes",)
_WRAPPERS = ("module", "_orig_mod")  # of DataParallel and DistributedDataParallel, and of torch.compile
_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray))


class Encoded:
    """A state without live objects.

    Args:
        state: Plain values, containers, tensors and arrays of NumPy.

    Attributes:
        value: The state, with dicts in place of other mappings.
        size: About the bytes that it needs in a file.
        has_tensors: It needs PyTorch.

    Raises:
        TypeError: A value is of another type; the message names it.
    """

    def __init__(self, state: Any) -> None:
        self.size = 4096
        self.has_tensors = False
        self.value = self._encode(state, "")

    @property
    def file(self) -> str:
        """The name of the state's file in a checkpoint."""
        return TORCH if self.has_tensors else PLAIN

    def _encode(self, value: Any, name: str) -> Any:
        if type(value) in _SCALARS and not (type(value) is bytes and not value):
            self.size += len(value) if isinstance(value, str | bytes | bytearray) else 16
            return value
        if _is_a(value, "torch", "Tensor", "dtype", "device"):
            self.has_tensors = True
            self.size += TENSOR_BYTES + getattr(value, "nbytes", 0)
            return value
        if isinstance(value, Mapping):
            return self._mapping(value, name)
        kind = next((kind for kind in (list, tuple, set) if isinstance(value, kind)), None)
        if kind is not None:
            return kind(self._encode(item, f"{name}[{place}]") for place, item in enumerate(value))
        return self._convert(value, name)

    def _convert(self, value: Any, name: str) -> Any:
        """Return an array of NumPy and what PyTorch does not load as plain values, a subclass of a number or text as that."""
        if type(value) is bytes:
            return _EMPTY
        if isinstance(value, frozenset):
            return (_FROZEN, self._encode(tuple(value), name))
        if _is_a(value, "numpy", "ndarray") and not value.dtype.hasobject:
            self.size += value.nbytes
            return (_ARRAY, value.dtype.str, value.shape, value.tobytes() or _EMPTY)
        if _is_a(value, "numpy", "generic"):
            return value.item()
        plain = next((plain for plain in (int, float, str) if isinstance(value, plain)), None)
        if plain is not None:
            return plain(value)
        raise TypeError(
            f"{name} is a {type(value).__name__}; a checkpoint has numbers, texts, lists, dicts, tensors, arrays and "
            "objects with state_dict()"
        )

    def _mapping(self, value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
        named = ((key, f"{name}[{key!r}]" if name else str(key), item) for key, item in value.items())
        items = [(self._encode(key, f"a key of {name}"), self._encode(item, inner)) for key, inner, item in named]
        if type(value) is Counter:  # the milestones of a scheduler
            return Counter(dict(items))
        if not hasattr(value, "_metadata"):
            return dict(items)
        kept: OrderedDict[Any, Any] = OrderedDict(items)
        kept._metadata = value._metadata  # type: ignore[attr-defined]  # noqa: SLF001  versions of a model's modules
        return kept


def write(file: IO[bytes], encoded: Encoded) -> None:
    """Write a state."""
    if encoded.has_tensors:
        import torch

        torch.save(encoded.value, file)
        return
    try:
        from zipfile import ZipFile  # it loads compressors, which `import trackside` need not wait for
    except ImportError as error:  # for one of them there is no file descriptor
        raise OSError(str(error)) from None
    with ZipFile(file, "w") as archive, archive.open(MEMBER, "w", force_zip64=True) as member:
        pickle.dump(encoded.value, member, protocol=5)


def read_any(folder: Path) -> Any:
    """Return the state of a checkpoint; see `read`."""
    return read(folder / (TORCH if (folder / TORCH).exists() else PLAIN))


def read(path: Path) -> Any:
    """Return the state in a file.

    Raises:
        Exception: The file is damaged; of any type.
    """
    if path.suffix == ".pt":
        import torch

        return _decode(torch.load(path, map_location="cpu", weights_only=True))
    from zipfile import ZipFile

    with ZipFile(path) as archive, archive.open(MEMBER) as member:
        return _decode(_PlainUnpickler(member).load())


class _PlainUnpickler(pickle.Unpickler):
    """Loads plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        if (found := {"complex": complex, "Counter": Counter}.get(name)) and found.__module__ == module:
            return found
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no checkpoint of trackside has")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        for key in list(value):  # its type and attributes stay
            item = value.pop(key)
            value[_decode(key)] = _decode(item)
        return value
    if type(value) is tuple and value and type(value[0]) is str:
        if value[0] == _ARRAY and len(value) == 4:
            import numpy as np

            _, kind, shape, data = value
            return np.frombuffer(bytearray(_decode(data)), dtype=kind).reshape(shape)
        if value[0] == _FROZEN and len(value) == 2:
            return frozenset(map(_decode, value[1]))
        if value == _EMPTY:
            return b""
    return type(value)(map(_decode, value)) if type(value) in {list, tuple, set} else value


def state_dicts(state: Any) -> Any:
    """Return a state with ``state_dict()`` in place of objects: of the state itself, or of the values of a mapping."""
    if isinstance(state, Mapping):
        return {name: _state_dict(part) for name, part in state.items()}
    return _state_dict(state)


def _state_dict(part: Any) -> Any:
    part = unwrapped(part)
    return part.state_dict() if callable(getattr(part, "state_dict", None)) else part


def restore(kept: Mapping[str, Any], into: Any) -> None:
    """Load a state into an object with ``load_state_dict``, or into those of a mapping by name; restore the generators.

    Raises:
        KeyError: The checkpoint lacks a name of the mapping.
    """
    restore_random(kept["random"])
    state = kept["state"]
    if not isinstance(into, Mapping):
        into, state = {"state": into}, {"state": state}
    for name, target in into.items():
        if callable(getattr(target, "load_state_dict", None)):
            if name not in state:
                raise KeyError(f"the checkpoint has no {name!r}, only {', '.join(map(repr, state))}")
            unwrapped(target).load_state_dict(_without_prefix(state[name]))


def unwrapped(model: Any) -> Any:
    """Return the model inside of DataParallel, DistributedDataParallel and torch.compile."""
    while type(model).__name__ in {"DataParallel", "DistributedDataParallel", "OptimizedModule"}:
        model = getattr(model, "module", None) if hasattr(model, "device_ids") else model._orig_mod  # noqa: SLF001
    return model


def _without_prefix(state: Any) -> Any:
    """Return a model's state dict without the prefix of a wrapper that all its keys have."""
    for wrapper in _WRAPPERS:
        prefix = f"{wrapper}."
        if isinstance(state, dict) and state and all(isinstance(key, str) and key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def random_states() -> dict[str, Any]:
    """Return the states of the random generators of Python, NumPy and PyTorch, as far as they are imported."""
    states: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random(states: Mapping[str, Any]) -> None:
    """Restore the states that `random_states` returned; those of sharded models are with their ranks."""
    if "python" in states:
        random.setstate(states["python"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])
    if "torch" in states and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
            torch.cuda.set_rng_state_all(states["cuda"])


def _is_a(value: Any, module: str, *names: str) -> bool:
    """Return whether a value is of one of a library's types; a process without the library has no such value."""
    library = sys.modules.get(module)
    return library is not None and isinstance(value, tuple(getattr(library, name) for name in names))
