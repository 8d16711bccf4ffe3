"""The type bfloat16: 32-bit floats without their lower 16 bits."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numpy_type
from spark_lance.compat.lance.images import (
    EncodedImageArray,
    EncodedImageType,
    FixedShapeImageTensorArray,
    FixedShapeImageTensorType,
    ImageArray,
    ImageURIArray,
    ImageURIType,
)

__all__ = [
    "BFloat16",
    "BFloat16Array",
    "BFloat16Scalar",
    "BFloat16Type",
    "EncodedImageArray",
    "EncodedImageType",
    "FixedShapeImageTensorArray",
    "FixedShapeImageTensorType",
    "ImageArray",
    "ImageURIArray",
    "ImageURIType",
    "bfloat16_array",
    "cast",
]

# Names that need pandas.
_OF_PANDAS = ("PandasBFloat16Array", "PandasBFloat16Type")


def __getattr__(name: str) -> Any:
    if name in _OF_PANDAS:
        return getattr(import_module("spark_lance.compat.lance.bfloat16_pandas"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def _bits(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Return the bits of floats as bfloat16, rounded to the nearest value, ties to even."""
    whole = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (whole + 0x7FFF + ((whole >> 16) & 1)) >> 16
    quiet = (whole >> 16) | 0x40
    return np.where(np.isnan(np.asarray(values, np.float32)), quiet, rounded).astype(np.uint16)


def _floats(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@functools.total_ordering
class BFloat16:
    """One bfloat16 number."""

    def __init__(self, value: float) -> None:
        self._value = float(_floats(_bits([value]))[0])

    @classmethod
    def from_bytes(cls, data: bytes) -> BFloat16:
        """Return the number stored in two bytes."""
        return cls(float(_floats(np.frombuffer(data, "<u2"))[0]))

    def as_float(self) -> float:
        """Return the number as a float."""
        return self._value

    def __float__(self) -> float:
        return self._value

    def __eq__(self, other: object) -> bool:
        try:
            return self._value == float(other)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False

    def __lt__(self, other: BFloat16) -> bool:
        return self._value < other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return f"{self._value:.9g}"

    def __repr__(self) -> str:
        return f"BFloat16({self._value:.9g})"


class BFloat16Scalar(pa.ExtensionScalar):  # type: ignore[misc]
    """One value of a bfloat16 array."""

    def as_py(self, **_: Any) -> BFloat16 | None:
        """Return the value as a Python object."""
        return None if self.value is None else BFloat16.from_bytes(self.value.as_py())

    def __eq__(self, other: object) -> bool:
        return bool(self.as_py() == (other.as_py() if isinstance(other, pa.Scalar) else other))

    def __hash__(self) -> int:
        return hash(self.as_py())


class BFloat16Array(pa.ExtensionArray):  # type: ignore[misc]
    """An array of bfloat16 numbers."""

    @classmethod
    def from_numpy(cls, array: npt.NDArray[Any]) -> BFloat16Array:
        """Return an array from numpy values. Values of other types than bfloat16 are rounded."""
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else _bits(array)
        return _from_bits(bits, None)

    def to_numpy(self, zero_copy_only: bool = False) -> npt.NDArray[Any]:
        """Return the numbers as a float32 numpy array; nulls become NaN."""
        bits = np.frombuffer(self.storage.buffers()[1], "<u2")[self.offset : self.offset + len(self)]
        values: npt.NDArray[Any] = _floats(bits).copy()
        if self.null_count:
            values[np.asarray(self.is_null())] = np.nan
        return values

    def __str__(self) -> str:
        lines = "".join(f"\n  {value}," for value in self.to_pylist())
        return f"[{lines.rstrip(',')}\n]"

    def __repr__(self) -> str:
        return f"<lance.arrow.BFloat16Array object at 0x{id(self):x}>\n{self}"


class BFloat16Type(pa.ExtensionType):  # type: ignore[misc]
    """The Arrow type of bfloat16 numbers, with two bytes each."""

    def __init__(self) -> None:
        super().__init__(pa.binary(2), "lance.bfloat16")

    def __hash__(self) -> int:
        return hash(self.extension_name)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> BFloat16Type:
        return cls()

    def __arrow_ext_class__(self) -> type[BFloat16Array]:
        return BFloat16Array

    def to_pandas_dtype(self) -> Any:
        """Return the pandas type."""
        return import_module("spark_lance.compat.lance.bfloat16_pandas").PandasBFloat16Type()

    def __arrow_ext_scalar_class__(self) -> type[BFloat16Scalar]:
        return BFloat16Scalar


def _from_bits(bits: npt.NDArray[np.uint16], nulls: npt.NDArray[np.bool_] | None) -> BFloat16Array:
    valid = None
    if nulls is not None and nulls.any():
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    buffers = [valid, pa.py_buffer(bits.astype("<u2").tobytes())]
    storage = pa.Array.from_buffers(pa.binary(2), len(bits), buffers)
    result: BFloat16Array = pa.ExtensionArray.from_storage(BFloat16Type(), storage)
    return result


def bfloat16_array(values: Iterable[float | None]) -> BFloat16Array:
    """Return a bfloat16 array; None becomes null."""
    items = list(values)
    nulls = np.array([value is None for value in items], np.bool_)
    return _from_bits(_bits([0.0 if value is None else float(value) for value in items]), nulls)


def cast(arr: pa.Array, target_type: pa.DataType | str) -> pa.Array:
    """Cast numbers, or fixed-size lists of numbers, to another type, including to and from bfloat16.

    Args:
        arr: the numbers.
        target_type: an Arrow type, or "bfloat16".
    """
    kind: Any = BFloat16Type() if target_type in ("bfloat16", "bf16") else target_type
    if isinstance(kind, pa.DataType) and pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(cast(arr.values, kind.value_type), kind.list_size)
    if isinstance(kind, BFloat16Type):
        return bfloat16_array(arr.cast(pa.float32()).to_pylist())
    if isinstance(arr, BFloat16Array):
        numbers = arr.to_numpy().astype(numpy_type(kind))
        return pa.array(numbers, kind, mask=np.asarray(arr.is_null()))
    return arr.cast(kind)


# Another package may have registered a type of this name.
with suppress(pa.ArrowKeyError):
    pa.register_extension_type(BFloat16Type())
