"""Decide what counts as a number of a push: any kind of number, and a tensor or an array of one, which may still be on a device."""

import math
import sys
from collections.abc import Mapping
from typing import Any

TEXT = (str, bytes, bytearray)
NUMBERS = frozenset((float, int))


class NoNumberError(TypeError):
    """A value is no number, for a reason that its type does not show."""


_tensor: Any = None  # torch.Tensor, once torch is imported: each push would miss the CPU caches to find it
_array: Any = None  # the type of JAX's arrays, once one is pushed, for the same reason


def _tensor_class() -> Any:
    global _tensor  # noqa: PLW0603
    if _tensor is None:
        _tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return () if _tensor is None else _tensor


def is_on_device(value: object) -> bool:
    """Return whether *value* is a CUDA (or ROCm) tensor of one number, without importing torch."""
    kind = _tensor_class()
    return isinstance(value, kind) and bool(value.is_cuda) and value.numel() == 1 and not value.is_complex()


def read_number(value: Any) -> Any:
    """Return ``float()`` of a number of any kind, or of the local part of a sharded one, if that waits for no device.

    Else return None for a tensor, and an array of JAX itself, which the sender thread reads later.

    Raises:
        TypeError: It is not a number. Its methods may raise anything else.
    """
    if type(value) is _array:
        return _computed(value)
    if type(value) is (_tensor or _tensor_class()) and value.is_cpu and not value.dim():
        # Past PyTorch's dispatcher, which takes longer than a push, and without a warning if the tensor has a gradient.
        try:
            return float(value.tolist())
        except Exception:  # noqa: BLE001, S110  one that is sparse, or complex without an imaginary part, float() reads
            pass
    if isinstance(value, TEXT):  # float() would read "3"
        raise TypeError
    if is_array(value):  # first: the attributes of a traced one raise
        return _computed(value)
    value = local_part(value)
    if is_on_device(value):
        return None
    if hasattr(value, "dtype"):
        value = _element(value)
    return float(value)


def refusal(value: object, error: Exception) -> str:
    """Return why a value is refused, after an error of `read_number`."""
    is_known = isinstance(error, NoNumberError)
    return str(error) if is_known else f"a value of type {type(value).__name__} is not a number"


def is_array(value: object) -> bool:
    """Return whether *value* is an array of JAX, without importing it.

    Raises:
        NoNumberError: It stands for one while JAX traces a function, and has no number.
    """
    global _array  # noqa: PLW0603
    jax = sys.modules.get("jax")
    kind = getattr(jax, "Array", None)  # missing while another thread imports it
    if kind is None or not isinstance(value, kind):
        return False
    tracer = getattr(getattr(jax, "core", None), "Tracer", ())
    if isinstance(value, tracer) or not hasattr(value, "copy_to_host_async"):
        raise NoNumberError("it has no number inside a function that JAX compiles or derives; push what that returns")
    _array = type(value)
    return True


def _computed(array: Any) -> Any:
    """Return the number of an array of JAX, or the array itself as long as it is not computed."""
    try:
        if not array.is_ready():
            if array.shape and math.prod(array.shape) != 1:  # one that waits keeps its memory
                raise TypeError
            return array
        number = array.item() if array.shape == () else None
    except RuntimeError:  # it is on several hosts, or deleted
        number = None
    if type(number) in NUMBERS:
        return number
    if array.is_deleted():
        raise NoNumberError("its array was donated to a compiled function and not read before; push array.copy()")
    return float(_element(local_part(array)))


def _element(value: Any) -> Any:
    """Return the number of an array or a tensor of one element, of any shape, type and library.

    Raises:
        TypeError: It has several, or is no real number.
    """
    kind = getattr(value.dtype, "kind", "")  # of NumPy and JAX, whose str() takes 3 µs
    if kind == "c" or (not kind and "complex" in str(value.dtype)) or any(length != 1 for length in value.shape):
        raise TypeError
    value = value.detach() if getattr(value, "requires_grad", False) else value
    value = value.item() if hasattr(value, "item") else value.numpy().item()  # TensorFlow has only the latter
    if isinstance(value, TEXT):
        raise TypeError
    return value


def local_part(value: Any) -> Any:
    """Return this rank's part of a DTensor or of an array of JAX on several hosts; anything else as it is."""
    # The whole tensor would need a collective, which could hang as the training does.
    if hasattr(value, "to_local"):
        return value.to_local()
    return value.addressable_data(0) if getattr(value, "is_fully_addressable", True) is False else value


def numeric(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a framework's values that convert to a number, by their keys."""
    return {key: value for key, value in values.items() if hasattr(value, "__float__")}


def is_scalar(value: Any) -> bool:
    """Return whether a value converts to a number and, if it is an array, has one element."""
    return hasattr(value, "__float__") and all(length == 1 for length in getattr(value, "shape", ()))
