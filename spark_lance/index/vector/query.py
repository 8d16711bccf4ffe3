"""The request of a search by vector, with the keys of pylance's `nearest`."""

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

# Keys whose values are taken as they are.
_PLAIN = ("k", "refine_factor", "ef", "use_index", "fast_search", "minimum_nprobes", "maximum_nprobes")
_NUMBERS = ("nprobes", "k", "refine_factor", "ef", "minimum_nprobes", "maximum_nprobes")
_KEYS = {"column", "q", "metric", "nprobes", "distance_range", "approx_mode", *_PLAIN}
# Partitions that are looked at if the query does not say how many.
_PROBES = 20


@dataclass(frozen=True)
class VectorQuery:
    """The rows nearest to one or several vectors.

    Attributes:
        column: the column that is searched.
        vectors: (queries, dim) floats, or uint8 for hamming; in a column of lists of vectors one query.
        k: rows per query.
        metric: by default that of the index, l2 without one. An index of another metric is not used.
        minimum_nprobes: partitions that are looked at in each segment.
        maximum_nprobes: how many more may be looked at until there are k rows; all by default.
        refine_factor: this many times k rows are fetched and compared exactly; always 10 times, if nothing
            else is said, in a column of lists of vectors.
        ef: nodes that a search in a graph keeps in mind.
        use_index: False compares every row exactly.
        fast_search: leaves out rows that are not indexed.
        distance_range: [low, high) of the distances wanted.
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
        most = self.maximum_nprobes
        for name, value in (("k", self.k), ("nprobes", self.minimum_nprobes), ("maximum_nprobes", most),
                            ("refine_factor", self.refine_factor)):  # fmt: skip
            if value is not None and value < 1:
                raise OptionError(f"{name} of a vector search must be 1 or more, not {value}")
        if most is not None and most < self.minimum_nprobes:
            raise OptionError(f"minimum_nprobes {self.minimum_nprobes} is above maximum_nprobes {most}")
        if self.ef is not None and self.ef < self.candidates:
            raise OptionError(f"ef must be at least k * refine_factor, {self.candidates}, not {self.ef}")

    @property
    def candidates(self) -> int:
        """Candidates per query."""
        return self.k * (self.refine_factor or 1)

    @classmethod
    def parse(cls, nearest: Mapping[str, Any]) -> VectorQuery:
        """Return the query of a dict with pylance's keys.

        Raises:
            OptionError: a key or value that a search does not have.
        """
        unknown = sorted(set(nearest) - _KEYS)
        if unknown:
            raise OptionError(
                f"unknown keys of nearest: {', '.join(unknown)}; there are {', '.join(sorted(_KEYS))}"
                f"{suggestion(unknown[0], _KEYS)}"
            )
        missing = [key for key in ("column", "q") if nearest.get(key) is None]
        if missing:
            raise OptionTypeError(f"nearest needs {' and '.join(missing)}")
        _check_types(nearest)
        options: dict[str, Any] = {key: nearest[key] for key in _PLAIN if nearest.get(key) is not None}
        if nearest.get("nprobes") is not None:
            options["minimum_nprobes"] = options["maximum_nprobes"] = int(nearest["nprobes"])
        elif "maximum_nprobes" in options and "minimum_nprobes" not in options:
            options["minimum_nprobes"] = min(_PROBES, options["maximum_nprobes"])
        if nearest.get("metric") is not None:
            options["metric"] = metric_named(nearest["metric"])
        if nearest.get("distance_range") is not None:
            low, high = nearest["distance_range"]
            options["distance_range"] = (low, high)
        return cls(column=nearest["column"], vectors=_matrix(nearest["q"]), **options)

    def answers(self, kind: pa.DataType) -> int:
        """Return how many answers there are: one for each vector, or one for all if rows have several."""
        return 1 if is_multi(kind) else len(self.vectors)

    def fitted(self, kind: pa.DataType) -> VectorQuery:
        """Return the query with vectors of the column's dimension and of a type to compare its values with.

        Raises:
            OptionError: the dimensions differ, or the values do not fit.
        """
        kind = vector_kind(kind)
        if not pa.types.is_fixed_size_list(kind):
            raise OptionTypeError(
                f"column {self.column!r} must be a vector, and is {kind}: it holds no vectors of one length"
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
            raise OptionError("the query contains NaN or infinity")
        else:
            vectors = vectors.astype(np.float64 if kind.value_type == pa.float64() else np.float32)
        return VectorQuery(**{**self.__dict__, "vectors": vectors})


def _check_types(nearest: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, which texts of options may hold."""
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


def _matrix(value: Any) -> Vectors:
    """Return one query, or several, as a matrix of numbers."""
    if isinstance(value, pa.Array | pa.ChunkedArray | pa.Scalar):
        value = value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist()
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            array = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
        lengths = {len(each) for each in several if isinstance(each, Sized)}
        if len(lengths) > 1:
            raise OptionError(
                f"All query vectors must have the same length, not {', '.join(map(str, sorted(lengths)))}"
            ) from error
        raise OptionError(f"a query must be numbers, one list or a list of lists: {error}") from error
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or not array.size:
        raise OptionError(
            f"a query must be one list of numbers or a list of them, not of shape {array.shape}"
        )
    return array
