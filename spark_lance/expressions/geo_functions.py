"""Geometry functions: predicates, measures, bounding boxes, and conversion from and to text and binary.

    st_intersects, st_contains, st_within, st_touches, st_crosses, st_overlaps, st_covers, st_coveredby,
    st_disjoint, st_equals (a, b)           predicates of the DE-9IM model
    st_distance(a, b)                       in the unit of the coordinates; null if one geometry is empty
    st_area, st_length (g)                  area of polygons, length of lines; 0 for other geometries
    st_x, st_y, st_z (point)                null for other geometries and for a missing ordinate
    st_xmin, st_ymin, st_xmax, st_ymax (g)  the bounding box; null for empty geometries
    st_isempty, st_isvalid (g)
    st_npoints, st_numpoints (g)            the number of coordinates
    st_geometrytype(g)                      the type, such as ST_Polygon
    st_astext, st_asbinary (g)              well-known text and binary
    st_geomfromtext(text), st_geomfromwkb(bytes), st_point(x, y), st_makepoint(x, y)

An argument is a column, the result of another function, or a constant. A text constant is well-known text,
and a bytes constant is well-known binary. A null argument gives a null result. Coordinates are planar, and
shapely computes the results. (Lance SQL, geometry.)

The functions convert Arrow arrays to shapely geometries. The name of the Arrow extension type
(`ARROW:extension:name`) determines the layout of a column:

    geoarrow.point              coordinates
    geoarrow.linestring         list of coordinates; also geoarrow.multipoint
    geoarrow.polygon            list of rings, which are lists of coordinates; also geoarrow.multilinestring
    geoarrow.multipolygon       list of polygons
    geoarrow.box                struct<xmin, ymin, [zmin, [mmin,]] xmax, ymax, ...>
    geoarrow.wkb, ogc.wkb       well-known binary; also binary without an extension name
    geoarrow.wkt                well-known text; also text without an extension name

Coordinates are struct<x, y, [z, [m]]> of doubles, or fixed_size_list<double> of 2 to 4. The functions keep Z
and drop M. Predicates use x and y. Spatial references are not interpreted. (GeoArrow format, memory layout.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.arrow.texts import is_text
from spark_lance.errors import ExpressionError, OptionError
from spark_lance.expressions.values import Value, cast, is_typed, typed
from spark_lance.file.base.extensions import BOX, NATIVE_DEPTHS, WELL_KNOWN_BINARY, WELL_KNOWN_TEXT

Geometries = npt.NDArray[np.object_]

_NAME = b"ARROW:extension:name"
_MOST_ORDINATES = 4
# The names of the list items of a type, the innermost first.
_CHILDREN = {
    "geoarrow.linestring": ("vertices",),
    "geoarrow.multipoint": ("points",),
    "geoarrow.polygon": ("vertices", "rings"),
    "geoarrow.multilinestring": ("vertices", "linestrings"),
    "geoarrow.multipolygon": ("vertices", "rings", "polygons"),
}


@cache
def shapes() -> Any:
    """Return the module shapely.

    Raises:
        OptionError: shapely is not installed.
    """
    try:
        return import_module("shapely")
    except ImportError as error:
        raise OptionError(
            "geometry functions and indexes need the package shapely: pip install 'spark-lance[geo]'"
        ) from error


def extension_name(field: pa.Field) -> str:
    """Return the name of a field's Arrow extension type, from its type or metadata, or ""."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    return bytes((field.metadata or {}).get(_NAME, b"")).decode("utf-8", "replace")


def is_geometry(extension: str, kind: pa.DataType) -> bool:
    """Return whether the values can be geometries.

    Args:
        extension: the name of the extension type, or "".
        kind: the storage type.
    """
    if _is_binary(kind):
        return extension in WELL_KNOWN_BINARY or not extension
    if is_text(kind):
        return extension in WELL_KNOWN_TEXT or not extension
    if extension == BOX:
        return bool(pa.types.is_struct(kind)) and {"xmin", "ymin", "xmax", "ymax"} <= {f.name for f in kind}
    if extension not in NATIVE_DEPTHS:
        return False
    for _ in range(NATIVE_DEPTHS[extension]):
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        kind = kind.value_type
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        return names[:2] == ["x", "y"] and all(pa.types.is_floating(f.type) for f in kind)
    return bool(
        pa.types.is_fixed_size_list(kind)
        and 2 <= kind.list_size <= _MOST_ORDINATES
        and pa.types.is_floating(kind.value_type)
    )


def stored_type(extension: str, kind: pa.DataType) -> pa.DataType:
    """Return the type of a geometry column, with GeoArrow's item names and no nulls inside values.

    Args:
        extension: the name of the extension type.
        kind: a type for which `is_geometry` is true.
    """
    if _is_binary(kind) or is_text(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, pa.float64(), nullable=False) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return kind
    depth = NATIVE_DEPTHS[extension]
    inner = kind
    for _ in range(depth):
        inner = inner.value_type
    geometry = stored_type("geoarrow.point", inner)
    for name in _CHILDREN[extension]:
        geometry = pa.list_(pa.field(name, geometry, nullable=False))
    return geometry


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def parse_geometries(values: pa.Array, extension: str) -> Geometries:
    """Return values as shapely geometries, with None for nulls.

    Args:
        values: an array of a type for which `is_geometry` is true.
        extension: the name of the extension type; "" for well-known binary or text.

    Raises:
        ExpressionError: the type cannot hold geometries, or a value is damaged. Examples are undecodable
            bytes and rings that are not closed.
    """
    if not is_geometry(extension, values.type):
        description = f"{extension} ({values.type})" if extension else str(values.type)
        raise ExpressionError(
            f"a geometry must be a GeoArrow column, well-known binary or well-known text, not {description}"
        )
    shapely = shapes()
    try:
        if _is_binary(values.type):
            return np.asarray(shapely.from_wkb(_objects(values)), dtype=object)
        if is_text(values.type):
            return np.asarray(shapely.from_wkt(_objects(values)), dtype=object)
        result = _boxes(values) if extension == BOX else _native(values, extension)
    except (shapely.errors.GEOSException, ValueError) as error:
        raise ExpressionError(f"invalid geometry: {error}") from error
    result[values.is_null().to_numpy(zero_copy_only=False)] = None
    return result


def _objects(values: pa.Array) -> Geometries:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=object)


def _boxes(values: pa.StructArray) -> Geometries:
    sides = [_doubles(pc.struct_field(values, name)) for name in ("xmin", "ymin", "xmax", "ymax")]
    return np.asarray(shapes().box(*sides), dtype=object)


def _native(values: pa.Array, extension: str) -> Geometries:
    """Return the geometries of a column in a native GeoArrow layout."""
    shapely = shapes()
    coordinates, offsets = _flattened(values, extension)
    if not offsets:
        points = np.asarray(shapely.points(coordinates), dtype=object)
        # A point whose ordinates are all NaN is GeoArrow's empty point.
        points[np.isnan(coordinates).all(axis=1)] = shapely.Point()
        return points
    kind = shapely.GeometryType[extension.partition(".")[2].upper()]
    return np.asarray(shapely.from_ragged_array(kind, coordinates, tuple(reversed(offsets))), dtype=object)


def _flattened(values: pa.Array, extension: str) -> tuple[npt.NDArray[np.float64], list[Ints]]:
    """Return all coordinates, and the offsets of the lists around them, the outermost list first."""
    offsets: list[Ints] = []
    for _ in range(NATIVE_DEPTHS[extension]):
        ends = values.offsets.to_numpy().astype(np.int64)
        offsets.append(ends - ends[0])
        values = values.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return _coordinates(values), offsets


def _coordinates(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return coordinates as rows of x and y, or x, y and z."""
    if pa.types.is_struct(values.type):
        names = [field.name for field in values.type if field.name in ("x", "y", "z")]
        return np.column_stack([_doubles(pc.struct_field(values, name)) for name in names])
    size = values.type.list_size
    # Null rows keep their values, so that the number of rows stays the same.
    flat = _doubles(values.values.slice(values.offset * size, len(values) * size)).reshape(-1, size)
    return np.ascontiguousarray(flat[:, : 3 if size > 2 and values.type.value_field.name != "xym" else 2])


def _doubles(values: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def bounding_boxes(values: pa.Array, extension: str) -> npt.NDArray[np.float64]:
    """Return the bounding boxes of values, in the form of `geometry_bounds`.

    Native GeoArrow values are not converted to geometries.

    Raises:
        ExpressionError: see `parse_geometries`.
    """
    if extension not in NATIVE_DEPTHS or not is_geometry(extension, values.type):
        return geometry_bounds(parse_geometries(values, extension))
    coordinates, offsets = _flattened(values, extension)
    corners = np.hstack([coordinates[:, :2], coordinates[:, :2]])
    if offsets:
        ends = offsets[0]
        for inner in offsets[1:]:
            ends = inner[ends]
        boxes = np.full((len(values), 4), np.nan)
        there = np.flatnonzero(ends[1:] > ends[:-1])
        if len(there):
            # `reduceat` works because each run of coordinates ends where the next one begins.
            boxes[there, :2] = np.fmin.reduceat(corners[:, :2], ends[there], axis=0)
            boxes[there, 2:] = np.fmax.reduceat(corners[:, 2:], ends[there], axis=0)
        corners = boxes
    corners[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return corners


def geometry_bounds(geometries: Geometries) -> npt.NDArray[np.float64]:
    """Return an array of xmin, ymin, xmax and ymax per geometry; NaN for null and empty geometries."""
    return np.asarray(shapes().bounds(geometries), dtype=np.float64).reshape(-1, 4)


# Shapely's name of each predicate, and its name of the predicate with the arguments exchanged.
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

# Predicates that are true only if both geometries have a bounding box and the boxes intersect. Exception: two
# empty geometries are equal.
BOXES_MEET = frozenset(_PREDICATES) - {"st_disjoint"}


class _Marked(pa.ExtensionType):  # type: ignore[misc]
    """The type of values that carry the extension name of their column."""

    def __init__(self, storage: pa.DataType, name: str) -> None:
        self.name = name
        super().__init__(storage, f"spark_lance.{name}")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.name.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _Marked:
        return cls(storage, serialized.decode())


def as_geometry(column: Value, extension: Value) -> Value:
    """Return the values of a column with its extension name, for the geometry functions."""
    assert isinstance(column, pa.ChunkedArray)
    kind = _Marked(column.type, str(extension))
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in column.chunks], kind)


def _geometries(value: Value) -> tuple[Geometries, bool]:
    """Return the geometries of a value, and whether it is a constant. A constant has one geometry."""
    if not isinstance(value, pa.ChunkedArray | pa.Array):
        if not is_typed(value) and not isinstance(value, str | bytes | None):
            raise ExpressionError(f"a geometry must be well-known text or binary, not {value!r}")
        scalar = pa.scalar(None, pa.binary()) if value is None else typed(value)
        if pa.types.is_null(scalar.type):
            scalar = pa.scalar(None, pa.binary())
        return parse_geometries(pa.array([scalar.as_py()], scalar.type), ""), True
    chunks = value.chunks if isinstance(value, pa.ChunkedArray) else [value]
    extension = ""
    if isinstance(value.type, _Marked):
        extension = value.type.name
        chunks = [chunk.storage for chunk in chunks]
    return np.concatenate([np.empty(0, object), *(parse_geometries(c, extension) for c in chunks)]), False


def _result(values: Any, missing: npt.NDArray[np.bool_], kind: pa.DataType, constant: bool) -> Value:
    """Return the results, with null where `missing` is true; a scalar if all arguments are constants."""
    result = pa.array(np.asarray(values), kind, mask=missing)
    return result[0] if constant else pa.chunked_array([result])


def _missing(geometries: Geometries) -> npt.NDArray[np.bool_]:
    return np.asarray(shapes().is_missing(geometries))


def _guarded(compute: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return compute(*arguments)
    except shapes().errors.GEOSException as error:
        raise ExpressionError(f"the geometry function failed: {error}") from error


def _predicate(forth: str, back: str) -> Callable[[Value, Value], Value]:
    def compute(one: Value, other: Value) -> Value:
        for column, constant, is_swapped in ((one, other, False), (other, one, True)):
            box = _box_beside(column, constant)
            if box is not None:
                return _near(column, constant, box, back if is_swapped else forth, forth == "disjoint")
        (left, is_left), (right, is_right) = _geometries(one), _geometries(other)
        missing = _missing(left) | _missing(right)
        shapely = shapes()
        if is_right and not is_left and not missing.all():
            # Shapely uses only a prepared first argument, so the constant comes first.
            shapely.prepare(right)
            result = _guarded(getattr(shapely, back), right, left)
        else:
            if is_left and not missing.all():
                shapely.prepare(left)
            result = _guarded(getattr(shapely, forth), left, right)
        return _result(result, missing, pa.bool_(), is_left and is_right)

    return compute


def _box_beside(column: Value, constant: Value) -> npt.NDArray[np.float64] | None:
    """Return the box of a non-empty constant that is compared with a native column, otherwise None."""
    is_native = isinstance(column, pa.ChunkedArray) and isinstance(column.type, _Marked)
    if (
        not is_native
        or column.type.name not in NATIVE_DEPTHS
        or isinstance(constant, pa.ChunkedArray | pa.Array)
    ):
        return None
    box = geometry_bounds(_geometries(constant)[0])[0]
    return None if np.isnan(box).any() else box


def _near(column: Any, constant: Value, box: Any, name: str, is_apart: bool) -> Value:
    """Return a predicate of a native column and a constant.

    Only rows whose bounding box intersects the constant's box are converted to geometries.

    Args:
        column, constant: the arguments of the predicate.
        box: the bounding box of the constant.
        name: shapely's name of the predicate, with the column on the left.
        is_apart: the result for rows whose bounding box does not intersect `box`.
    """
    other, _ = _geometries(constant)
    shapely, parts = shapes(), []
    shapely.prepare(other)
    mirrored = dict(_PREDICATES.values())[name]
    for chunk in column.chunks:
        xmin, ymin, xmax, ymax = bounding_boxes(chunk.storage, column.type.name).T
        with np.errstate(invalid="ignore"):
            near = (xmin <= box[2]) & (xmax >= box[0]) & (ymin <= box[3]) & (ymax >= box[1])
        places = np.flatnonzero(near)
        result = np.full(len(chunk), is_apart)
        some = parse_geometries(chunk.storage.take(pa.array(places)), column.type.name)
        result[places] = _guarded(getattr(shapely, mirrored), other, some)
        parts.append(pa.array(result, mask=chunk.storage.is_null().to_numpy(zero_copy_only=False)))
    return pa.chunked_array(parts, pa.bool_())


def _distance(one: Value, other: Value) -> Value:
    (left, is_left), (right, is_right) = _geometries(one), _geometries(other)
    result = np.asarray(_guarded(shapes().distance, left, right))
    return _result(result, np.isnan(result), pa.float64(), is_left and is_right)


def _measure(compute: Callable[[Geometries], Any], kind: pa.DataType) -> Callable[[Value], Value]:
    """Return a function of one geometry. Its result is null where a float measure is NaN."""

    def function(value: Value) -> Value:
        geometries, constant = _geometries(value)
        result = np.asarray(_guarded(compute, geometries))
        missing = _missing(geometries)
        if pa.types.is_floating(kind):
            missing |= np.isnan(result)
        return _result(result, missing, kind, constant)

    return function


def _length(geometries: Geometries) -> npt.NDArray[np.float64]:
    # Shapely also measures the rings of polygons, but only lines have a length here.
    result = np.where(shapes().get_dimensions(geometries) == 1, shapes().length(geometries), 0.0)
    return np.where(_missing(geometries), np.nan, result)


def _side(place: int) -> Callable[[Value], Value]:
    return _measure(lambda geometries: geometry_bounds(geometries)[:, place], pa.float64())


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
    # Write spaces as the reference does: POINT(1 2), POINT Z(1 2 3), MULTIPOINT((0 0),(1 1)).
    return pc.replace_substring(pc.replace_substring(texts, " (", "("), ", ", ",")


def _as_binary(geometries: Geometries) -> Any:
    return shapes().to_wkb(geometries, flavor="iso")


def _geometry_parser(parse: Callable[[Value], bool], description: str) -> Callable[[Value], Value]:
    def function(value: Value) -> Value:
        if value is not None and not parse(typed(value)):
            raise ExpressionError(f"{description}, not {value if not is_typed(value) else value.type}")
        geometries, constant = _geometries(value)
        return _result(_as_binary(geometries), _missing(geometries), pa.binary(), constant)

    return function


def _is_str(value: Any) -> bool:
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


# The implementation and the number of arguments of each function.
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
    "st_geomfromtext": (_geometry_parser(_is_str, "st_geomfromtext takes well-known text"), 1),
    "st_geomfromwkb": (_geometry_parser(_is_bytes, "st_geomfromwkb takes well-known binary"), 1),
    "st_point": (_point, 2),
    "st_makepoint": (_point, 2),
}
