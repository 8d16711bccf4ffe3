"""VectorQuery: a vector search request, with the keys of pylance's `nearest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import OptionError, OptionTypeError, suggestion
from spark_lance.index.vector.base.metrics import Metric, Vectors, metric_named
from spark_lance.index.vector.kinds import as_vectors_hint, is_multi, vector_kind

# Keys that are passed on unchanged.
_PASSED_KEYS = ("k", "refine_factor", "ef", "use_index", "fast_search", "minimum_nprobes", "maximum_nprobes")
_NUMBERS = ("nprobes", "k", "refine_factor", "ef", "minimum_nprobes", "maximum_nprobes")
_KEYS = {"column", "q", "metric", "nprobes", "distance_range", "approx_mode", *_PASSED_KEYS}
# Default number of partitions to search.
_PROBES = 20


@dataclass(frozen=True)
class VectorQuery:
    """A search for the rows nearest to one or several vectors.

    Attributes:
        column: the column to search.
        vectors: (queries, dim) floats, or uint8 for hamming. In a column of lists of vectors, they are one
            query.
        k: rows per query.
        metric: the index's metric by default, or l2 without an index. An index of another metric is not used.
        minimum_nprobes: partitions to search in each segment.
        maximum_nprobes: limit of partitions to search until there are k rows; all by default.
        refine_factor: k times this many rows are fetched and compared exactly. The default for a column of
            lists of vectors is 10.
        ef: number of candidates of a graph search.
        use_index: False compares every row exactly.
        fast_search: whether to skip rows that are not indexed.
        distance_range: only return distances in [low, high).
    """

    column: str
    vectors: Vectors
    k: int = 10
    metric: Metric | None = None
    minimum_nprobes: int = _PROBES
    maximum_nprobes: int | None = None
    refine_factor: int | None = None
    ef: int | None = None
    use_index: bool = True
    fast_search: bool = False
    distance_range: tuple[float | None, float | None] = field(default=(None, None))

    def __post_init__(self) -> None:
        max_probes = self.maximum_nprobes
        for name, value in (("k", self.k), ("nprobes", self.minimum_nprobes), ("maximum_nprobes", max_probes),
                            ("refine_factor", self.refine_factor)):  # fmt: skip
            if value is not None and value < 1:
                raise OptionError(f"{name} of a vector search must be 1 or more, not {value}")
        if max_probes is not None and max_probes < self.minimum_nprobes:
            raise OptionError(f"minimum_nprobes {self.minimum_nprobes} is above maximum_nprobes {max_probes}")
        if self.ef is not None and self.ef < self.candidates:
            raise OptionError(f"ef must be at least k * refine_factor, {self.candidates}, not {self.ef}")

    @property
    def candidates(self) -> int:
        """Number of candidates per query."""
        return self.k * (self.refine_factor or 1)

    @classmethod
    def parse(cls, nearest: Mapping[str, Any]) -> VectorQuery:
        """Return the query of a dict with pylance's keys.

        Raises:
            OptionError: a key is unknown, or a value is invalid.
        """
        unknown = sorted(set(nearest) - _KEYS)
        if unknown:
            raise OptionError(
                f"unknown keys of nearest: {', '.join(unknown)}; there are {', '.join(sorted(_KEYS))}"
                f"{suggestion(unknown[0], _KEYS)}"
            )
        missing = [key for key in ("column", "q") if nearest.get(key) is None]
        if missing:
            raise OptionTypeError(
                f"nearest needs {' and '.join(missing)}, "
                "as in {'column': 'vector', 'q': [0.1, 0.2], 'k': 10}"
            )
        _check_types(nearest)
        options: dict[str, Any] = {key: nearest[key] for key in _PASSED_KEYS if nearest.get(key) is not None}
        if nearest.get("nprobes") is not None:
            options["minimum_nprobes"] = options["maximum_nprobes"] = int(nearest["nprobes"])
        elif "maximum_nprobes" in options and "minimum_nprobes" not in options:
            options["minimum_nprobes"] = min(_PROBES, options["maximum_nprobes"])
        if nearest.get("metric") is not None:
            options["metric"] = metric_named(nearest["metric"])
        if nearest.get("distance_range") is not None:
            low, high = nearest["distance_range"]
            options["distance_range"] = (low, high)
        return cls(column=nearest["column"], vectors=_as_matrix(nearest["q"]), **options)

    def answers(self, kind: pa.DataType) -> int:
        """Return the number of results: one per vector, or one in total if rows have several vectors."""
        return 1 if is_multi(kind) else len(self.vectors)

    def cast_to(self, kind: pa.DataType) -> VectorQuery:
        """Return the query with its vectors converted for comparison with a column of type `kind`.

        Raises:
            OptionError: the dimensions differ, or the values do not fit the column type.
        """
        kind = vector_kind(kind)
        if not pa.types.is_fixed_size_list(kind):
            raise OptionTypeError(
                f"column {self.column!r} is {kind}, which holds no vectors of one length: search a column of "
                "vectors"
                f"{as_vectors_hint(kind, self.vectors.shape[1])}"
            )
        dim = kind.list_size
        if self.vectors.shape[1] != dim:
            raise OptionError(
                f"the query has {self.vectors.shape[1]} values, which does not match index column size {dim} "
                f"of {self.column!r}"
            )
        if (kind.value_type == pa.uint8()) != (self.metric == "hamming") and self.metric is not None:
            raise OptionError(f"vectors of {kind.value_type} have no distance of metric {self.metric}")
        vectors: npt.NDArray[Any] = self.vectors
        if kind.value_type == pa.uint8():
            vectors = vectors.astype(np.uint8)
            if not np.array_equal(vectors, self.vectors):
                raise OptionError("a query for vectors of bytes must have whole numbers from 0 to 255")
        elif not np.isfinite(vectors).all():
            raise OptionError(f"q of nearest, for column {self.column!r}, contains NaN, infinity or a null")
        else:
            vectors = vectors.astype(np.float64 if kind.value_type == pa.float64() else np.float32)
        return VectorQuery(**{**self.__dict__, "vectors": vectors})


def _check_types(nearest: Mapping[str, Any]) -> None:
    """Check the types of values, because options can come as text."""
    for key in _NUMBERS:
        value = nearest.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise OptionError(f"{key} of a vector search must be a whole number, not {value!r}")
    for key in ("column", "metric"):
        if not isinstance(nearest.get(key), str | None):
            raise OptionError(f"{key} of a vector search must be text, not {nearest[key]!r}")
    for key in ("use_index", "fast_search"):
        if not isinstance(nearest.get(key) or False, bool | np.bool_):
            raise OptionError(f"{key} of a vector search must be true or false, not {nearest[key]!r}")
    bounds = nearest.get("distance_range")
    if bounds is None:
        return
    fits = isinstance(bounds, list | tuple) and len(bounds) == 2
    if not fits or not all(bound is None or isinstance(bound, int | float | np.number) for bound in bounds):
        raise OptionError(f"distance_range of a vector search must be two numbers or nulls, not {bounds!r}")


def _as_matrix(value: Any) -> Vectors:
    """Return one or several query vectors as a matrix of numbers."""
    if isinstance(value, pa.Array | pa.ChunkedArray | pa.Scalar):
        value = value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist()
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            array = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        vectors = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
        lengths = {len(each) for each in vectors if isinstance(each, Sized)}
        if len(lengths) > 1:
            raise OptionError(
                f"All query vectors must have the same length, not {', '.join(map(str, sorted(lengths)))}"
            ) from error
        text = repr(value)
        text = text if len(text) < 60 else f"{text[:60]}..."
        raise OptionError(
            f"q of nearest must be a list of numbers or a list of such lists, as in [0.1, 0.2], not {text}"
        ) from error
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or not array.size:
        raise OptionError(
            f"a query must be one list of numbers or a list of them, not of shape {array.shape}"
        )
    return array
