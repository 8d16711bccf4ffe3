"""Functions of geometries: relations of two, size and position of one, and geometries from text.

    st_intersects, st_contains, st_within, st_touches, st_crosses, st_overlaps, st_covers, st_coveredby,
    st_disjoint, st_equals (a, b)           whether they do, by the DE-9IM model
    st_distance(a, b)                       in the unit of the coordinates; null if one is empty
    st_area, st_length (g)                  of polygons, of lines; 0 for others
    st_x, st_y, st_z (point)                null if it is no point, or has none
    st_xmin, st_ymin, st_xmax, st_ymax (g)  the bounding box; null for what is empty
    st_isempty, st_isvalid (g)
    st_npoints, st_numpoints (g)            how many coordinates it has
    st_geometrytype(g)                      such as ST_Polygon
    st_astext, st_asbinary (g)              well-known text and binary
    st_geomfromtext(text), st_geomfromwkb(bytes), st_point(x, y), st_makepoint(x, y)

An argument is a column (see geometries.py), the result of another function, or a constant: text is well-known
text, bytes are well-known binary. A null argument gives a null result. Coordinates are planar; shapely
computes the results. (Lance SQL, geometry.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.expressions.geometries import (
    Geometries,
    bounds_of,
    boxes_of,
    geometries_of,
    shapes,
)
from spark_lance.expressions.values import Value, cast, is_typed, typed
from spark_lance.file.base.geometry_names import NATIVE_DEPTHS

# Predicates, by shapely's name of them, and by its name of the one with arguments exchanged.
_PREDICATES = {
    "st_intersects": ("intersects", "intersects"),
    "st_contains": ("contains", "within"),
    "st_within": ("within", "contains"),
    "st_touches": ("touches", "touches"),
    "st_crosses": ("crosses", "crosses"),
    "st_overlaps": ("overlaps", "overlaps"),
    "st_covers": ("covers", "covered_by"),
    "st_coveredby": ("covered_by", "covers"),
    "st_disjoint": ("disjoint", "disjoint"),
    "st_equals": ("equals", "equals"),
}

# Those that are only true if both have a bounding box and the boxes meet. Two empty geometries are equal.
BOXES_MEET = frozenset(_PREDICATES) - {"st_disjoint"}


class _Marked(pa.ExtensionType):  # type: ignore[misc]
    """Values with the name of the extension type of the column that they are from."""

    def __init__(self, storage: pa.DataType, name: str) -> None:
        self.name = name
        super().__init__(storage, f"spark_lance.{name}")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.name.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _Marked:
        return cls(storage, serialized.decode())


def as_geometry(column: Value, extension: Value) -> Value:
    """Return the values of a column so that functions of geometries know of its extension type."""
    assert isinstance(column, pa.ChunkedArray)
    kind = _Marked(column.type, str(extension))
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in column.chunks], kind)


def _geometries(value: Value) -> tuple[Geometries, bool]:
    """Return a value as geometries, one if it is a constant, and whether it is."""
    if not isinstance(value, pa.ChunkedArray | pa.Array):
        if not is_typed(value) and not isinstance(value, str | bytes | None):
            raise ExpressionError(f"a geometry is given as well-known text or binary, not as {value!r}")
        scalar = pa.scalar(None, pa.binary()) if value is None else typed(value)
        if pa.types.is_null(scalar.type):
            scalar = pa.scalar(None, pa.binary())
        return geometries_of(pa.array([scalar.as_py()], scalar.type), ""), True
    chunks = value.chunks if isinstance(value, pa.ChunkedArray) else [value]
    extension = ""
    if isinstance(value.type, _Marked):
        extension = value.type.name
        chunks = [chunk.storage for chunk in chunks]
    return np.concatenate([np.empty(0, object), *(geometries_of(c, extension) for c in chunks)]), False


def _result(values: Any, missing: npt.NDArray[np.bool_], kind: pa.DataType, constant: bool) -> Value:
    """Return the results, null if an argument is null; a scalar if all arguments are constants."""
    result = pa.array(np.asarray(values), kind, mask=missing)
    return result[0] if constant else pa.chunked_array([result])


def _missing(geometries: Geometries) -> npt.NDArray[np.bool_]:
    return np.asarray(shapes().is_missing(geometries))


def _guarded(compute: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return compute(*arguments)
    except shapes().errors.GEOSException as error:
        raise ExpressionError(f"the function of geometries cannot be computed: {error}") from error


def _predicate(forth: str, back: str) -> Callable[[Value, Value], Value]:
    def compute(one: Value, other: Value) -> Value:
        for column, constant, turned in ((one, other, False), (other, one, True)):
            box = _box_beside(column, constant)
            if box is not None:
                return _near(column, constant, box, back if turned else forth, forth == "disjoint")
        (left, is_left), (right, is_right) = _geometries(one), _geometries(other)
        missing = _missing(left) | _missing(right)
        shapely = shapes()
        if is_right and not is_left and not missing.all():
            # Only its first argument may be prepared.
            shapely.prepare(right)
            result = _guarded(getattr(shapely, back), right, left)
        else:
            if is_left and not missing.all():
                shapely.prepare(left)
            result = _guarded(getattr(shapely, forth), left, right)
        return _result(result, missing, pa.bool_(), is_left and is_right)

    return compute


def _box_beside(column: Value, constant: Value) -> npt.NDArray[np.float64] | None:
    """Return the box of a constant that is compared with coordinates of a column; None for anything else."""
    is_native = isinstance(column, pa.ChunkedArray) and isinstance(column.type, _Marked)
    if (
        not is_native
        or column.type.name not in NATIVE_DEPTHS
        or isinstance(constant, pa.ChunkedArray | pa.Array)
    ):
        return None
    box = bounds_of(_geometries(constant)[0])[0]
    return None if np.isnan(box).any() else box


def _near(column: Any, constant: Value, box: Any, name: str, is_apart: bool) -> Value:
    """Compare a column of coordinates with a constant: only what is near it becomes geometries.

    Args:
        column, constant: what is compared.
        box: of the constant.
        name: of shapely's predicate, for the column on the left.
        is_apart: what it is for geometries whose boxes do not meet.
    """
    other, _ = _geometries(constant)
    shapely, parts = shapes(), []
    shapely.prepare(other)
    mirrored = dict(_PREDICATES.values())[name]
    for chunk in column.chunks:
        xmin, ymin, xmax, ymax = boxes_of(chunk.storage, column.type.name).T
        with np.errstate(invalid="ignore"):
            near = (xmin <= box[2]) & (xmax >= box[0]) & (ymin <= box[3]) & (ymax >= box[1])
        places = np.flatnonzero(near)
        result = np.full(len(chunk), is_apart)
        some = geometries_of(chunk.storage.take(pa.array(places)), column.type.name)
        result[places] = _guarded(getattr(shapely, mirrored), other, some)
        parts.append(pa.array(result, mask=chunk.storage.is_null().to_numpy(zero_copy_only=False)))
    return pa.chunked_array(parts, pa.bool_())


def _distance(one: Value, other: Value) -> Value:
    (left, is_left), (right, is_right) = _geometries(one), _geometries(other)
    result = np.asarray(_guarded(shapes().distance, left, right))
    return _result(result, np.isnan(result), pa.float64(), is_left and is_right)


def _measure(compute: Callable[[Geometries], Any], kind: pa.DataType) -> Callable[[Value], Value]:
    """Return a function of one geometry; a measure of NaN is none."""

    def function(value: Value) -> Value:
        geometries, constant = _geometries(value)
        result = np.asarray(_guarded(compute, geometries))
        missing = _missing(geometries)
        if pa.types.is_floating(kind):
            missing |= np.isnan(result)
        return _result(result, missing, kind, constant)

    return function


def _length(geometries: Geometries) -> npt.NDArray[np.float64]:
    # Rings of polygons have a length in shapely, which is not that of a line.
    result = np.where(shapes().get_dimensions(geometries) == 1, shapes().length(geometries), 0.0)
    return np.where(_missing(geometries), np.nan, result)


def _side(place: int) -> Callable[[Value], Value]:
    return _measure(lambda geometries: bounds_of(geometries)[:, place], pa.float64())


_TYPES = np.array(
    [
        "ST_Point",
        "ST_LineString",
        "ST_LineString",
        "ST_Polygon",
        "ST_MultiPoint",
        "ST_MultiLineString",
        "ST_MultiPolygon",
        "ST_GeometryCollection",
        None,
    ],
    object,
)


def _type_name(geometries: Geometries) -> npt.NDArray[np.object_]:
    names: npt.NDArray[np.object_] = _TYPES[shapes().get_type_id(geometries)]
    return names


def _as_text(geometries: Geometries) -> Any:
    texts = pa.array(shapes().to_wkt(geometries, rounding_precision=-1), pa.string())
    # As the reference spaces it: POINT(1 2), POINT Z(1 2 3), MULTIPOINT((0 0),(1 1)).
    return pc.replace_substring(pc.replace_substring(texts, " (", "("), ", ", ",")


def _as_binary(geometries: Geometries) -> Any:
    return shapes().to_wkb(geometries, flavor="iso")


def _from(parse: Callable[[Value], bool], description: str) -> Callable[[Value], Value]:
    def function(value: Value) -> Value:
        if value is not None and not parse(typed(value)):
            raise ExpressionError(f"{description}, not {value if not is_typed(value) else value.type}")
        geometries, constant = _geometries(value)
        return _result(_as_binary(geometries), _missing(geometries), pa.binary(), constant)

    return function


def _is_text(value: Any) -> bool:
    return bool(pa.types.is_string(value.type) or pa.types.is_large_string(value.type))


def _is_bytes(value: Any) -> bool:
    return bool(pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type))


def _point(x: Value, y: Value) -> Value:
    sides = [cast(value, pa.float64()) for value in (x, y)]
    constant = not any(isinstance(side, pa.ChunkedArray | pa.Array) for side in sides)
    numbers = np.broadcast_arrays(*(_numbers(side) for side in sides))
    missing = np.isnan(numbers[0]) | np.isnan(numbers[1])
    points = np.asarray(shapes().points(*numbers), dtype=object)
    return _result(_as_binary(points), missing, pa.binary(), constant)


def _numbers(side: Value) -> npt.NDArray[np.float64]:
    if isinstance(side, pa.Scalar):
        return np.array([np.nan if side.as_py() is None else side.as_py()])
    return np.asarray(side.to_numpy(), dtype=np.float64)


# Name -> what it computes, and how many arguments it takes.
GEO_FUNCTIONS: dict[str, tuple[Callable[..., Value], int]] = {
    **{name: (_predicate(*both), 2) for name, both in _PREDICATES.items()},
    "st_distance": (_distance, 2),
    "st_area": (_measure(lambda geometries: shapes().area(geometries), pa.float64()), 1),
    "st_length": (_measure(_length, pa.float64()), 1),
    "st_x": (_measure(lambda geometries: shapes().get_x(geometries), pa.float64()), 1),
    "st_y": (_measure(lambda geometries: shapes().get_y(geometries), pa.float64()), 1),
    "st_z": (_measure(lambda geometries: shapes().get_z(geometries), pa.float64()), 1),
    "st_xmin": (_side(0), 1),
    "st_ymin": (_side(1), 1),
    "st_xmax": (_side(2), 1),
    "st_ymax": (_side(3), 1),
    "st_isempty": (_measure(lambda geometries: shapes().is_empty(geometries), pa.bool_()), 1),
    "st_isvalid": (_measure(lambda geometries: shapes().is_valid(geometries), pa.bool_()), 1),
    "st_npoints": (_measure(lambda geometries: shapes().get_num_coordinates(geometries), pa.uint32()), 1),
    "st_numpoints": (_measure(lambda geometries: shapes().get_num_coordinates(geometries), pa.uint32()), 1),
    "st_geometrytype": (_measure(_type_name, pa.string()), 1),
    "st_astext": (_measure(_as_text, pa.string()), 1),
    "st_asbinary": (_measure(_as_binary, pa.binary()), 1),
    "st_geomfromtext": (_from(_is_text, "st_geomfromtext takes well-known text"), 1),
    "st_geomfromwkb": (_from(_is_bytes, "st_geomfromwkb takes well-known binary"), 1),
    "st_point": (_point, 2),
    "st_makepoint": (_point, 2),
}
