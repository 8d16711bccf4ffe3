"""The type bfloat16 in columns of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.extensions import ExtensionArray, ExtensionDtype, register_extension_dtype, take

from spark_lance.compat.lance.arrow import BFloat16, BFloat16Array, bfloat16_array

__all__ = ["PandasBFloat16Array", "PandasBFloat16Type"]


@register_extension_dtype
class PandasBFloat16Type(ExtensionDtype):  # type: ignore[misc]
    """The type in pandas."""

    name = "lance.bfloat16"
    type = BFloat16
    na_value = None

    @classmethod
    def construct_array_type(cls) -> Any:
        """Return the class of its arrays."""
        return PandasBFloat16Array

    def __from_arrow__(self, array: pa.Array | pa.ChunkedArray) -> PandasBFloat16Array:
        return PandasBFloat16Array(array.to_pylist())


class PandasBFloat16Array(ExtensionArray):  # type: ignore[misc]
    """Numbers, None for null."""

    dtype = PandasBFloat16Type()

    def __init__(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> None:
        self._values = np.empty(len(values), object)
        for place, value in enumerate(values):
            missing = value is None or value is pd.NA
            self._values[place] = None if missing else BFloat16(float(value))

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> PandasBFloat16Array:
        """Return numbers of the numpy type bfloat16, or of others that are rounded to it."""
        return cls(BFloat16Array.from_numpy(array).to_pylist())

    @classmethod
    def _from_sequence(cls, scalars: Any, dtype: Any = None, copy: bool = False) -> PandasBFloat16Array:
        return cls(list(scalars))

    @classmethod
    def _from_factorized(cls, values: Any, original: Any) -> PandasBFloat16Array:
        return cls(list(values))

    @classmethod
    def _concat_same_type(cls, to_concat: Sequence[PandasBFloat16Array]) -> PandasBFloat16Array:
        return cls([value for part in to_concat for value in part._values])

    def __getitem__(self, item: Any) -> Any:
        result = self._values[pd.api.indexers.check_array_indexer(self, item)]
        return PandasBFloat16Array(result) if isinstance(result, np.ndarray) else result

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[key] = value

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, PandasBFloat16Array):
            return self._values == other._values
        return NotImplemented

    @property
    def nbytes(self) -> int:
        """The size in memory."""
        return int(self._values.nbytes)

    def isna(self) -> np.ndarray[Any, Any]:
        """Return which values are null."""
        return np.array([value is None for value in self._values], np.bool_)

    def take(self, indices: Any, *, allow_fill: bool = False, fill_value: Any = None) -> PandasBFloat16Array:
        """Return values by position."""
        return PandasBFloat16Array(take(self._values, indices, allow_fill=allow_fill, fill_value=fill_value))

    def copy(self) -> PandasBFloat16Array:
        """Return a copy."""
        return PandasBFloat16Array(self._values)

    def to_numpy(self, dtype: Any = None, copy: bool = False, na_value: Any = None) -> Any:
        """Return the numbers as numpy's float32, unless another type is asked for; nulls are NaN."""
        floats = np.array([np.nan if value is None else float(value) for value in self._values], np.float32)
        return floats if dtype is None else floats.astype(dtype)

    def __arrow_array__(self, type: pa.DataType | None = None) -> BFloat16Array:
        return bfloat16_array([None if value is None else float(value) for value in self._values])
