"""Geometries in columns: convert Arrow arrays to geometries of shapely.

The name of the Arrow extension type (`ARROW:extension:name`) determines the layout of a column:

    geoarrow.point              coordinates
    geoarrow.linestring         list of coordinates; geoarrow.multipoint is, too
    geoarrow.polygon            list of rings: lists of coordinates; geoarrow.multilinestring is, too
    geoarrow.multipolygon       list of polygons
    geoarrow.box                struct<xmin, ymin, [zmin, [mmin,]] xmax, ymax, ...>
    geoarrow.wkb, ogc.wkb       well-known binary; binary without a name is, too
    geoarrow.wkt                well-known text; text without a name is, too

Coordinates are struct<x, y, [z, [m]]> of doubles, or fixed_size_list<double> of 2 to 4. Z is kept, M is not;
predicates use x and y. Spatial references are not interpreted. (GeoArrow format, memory layout.)
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import ExpressionError, OptionError
from spark_lance.file.base.geometry_names import BOX, NATIVE_DEPTHS, WELL_KNOWN_BINARY, WELL_KNOWN_TEXT

Geometries = npt.NDArray[np.object_]

_NAME = b"ARROW:extension:name"
_MOST_ORDINATES = 4
# The kinds of elements in the lists of a type, the innermost first.
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
        OptionError: it is not installed.
    """
    try:
        return import_module("shapely")
    except ImportError as error:
        raise OptionError(
            "functions and indices of geometries need the package shapely: pip install 'spark-lance[geo]'"
        ) from error


def extension_of(field: pa.Field) -> str:
    """Return the name of a field's Arrow extension type, by its type or its metadata; "" if it has none."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    return bytes((field.metadata or {}).get(_NAME, b"")).decode("utf-8", "replace")


def is_geometry(extension: str, kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type (without extension) with an extension name can be geometries."""
    if _is_binary(kind):
        return extension in WELL_KNOWN_BINARY or not extension
    if _is_text(kind):
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
    """Return the type of a column of geometries as GeoArrow has it: no nulls inside, its names of items.

    Args:
        extension: the name of the extension type.
        kind: a type for which `is_geometry` is true.
    """
    if _is_binary(kind) or _is_text(kind):
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def geometries_of(values: pa.Array, extension: str) -> Geometries:
    """Return values as geometries of shapely, None for nulls.

    Args:
        values: of a type for which `is_geometry` is true.
        extension: the name of their extension type, "" for well-known binary or text.

    Raises:
        ExpressionError: they can be none, or are damaged: undecodable bytes, rings that are not closed.
    """
    if not is_geometry(extension, values.type):
        description = f"{extension} ({values.type})" if extension else str(values.type)
        raise ExpressionError(
            f"a geometry is a GeoArrow column, well-known binary or well-known text, not {description}"
        )
    shapely = shapes()
    try:
        if _is_binary(values.type):
            return np.asarray(shapely.from_wkb(_objects(values)), dtype=object)
        if _is_text(values.type):
            return np.asarray(shapely.from_wkt(_objects(values)), dtype=object)
        result = _boxes(values) if extension == BOX else _native(values, extension)
    except (shapely.errors.GEOSException, ValueError) as error:
        raise ExpressionError(f"a value is not a geometry: {error}") from error
    result[values.is_null().to_numpy(zero_copy_only=False)] = None
    return result


def _objects(values: pa.Array) -> Geometries:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=object)


def _boxes(values: pa.StructArray) -> Geometries:
    sides = [_doubles(pc.struct_field(values, name)) for name in ("xmin", "ymin", "xmax", "ymax")]
    return np.asarray(shapes().box(*sides), dtype=object)


def _native(values: pa.Array, extension: str) -> Geometries:
    """Return geometries whose coordinates lie in arrays."""
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
    """Return all coordinates, and the offsets of the lists that they lie in, the outermost first."""
    offsets: list[Ints] = []
    for _ in range(NATIVE_DEPTHS[extension]):
        ends = values.offsets.to_numpy().astype(np.int64)
        offsets.append(ends - ends[0])
        values = values.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return _coordinates(values), offsets


def _coordinates(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return coordinates as rows of x and y, with z if there is one."""
    if pa.types.is_struct(values.type):
        names = [field.name for field in values.type if field.name in ("x", "y", "z")]
        return np.column_stack([_doubles(pc.struct_field(values, name)) for name in names])
    size = values.type.list_size
    # Values under nulls keep their place, so that the number of rows stays the same.
    flat = _doubles(values.values.slice(values.offset * size, len(values) * size)).reshape(-1, size)
    return np.ascontiguousarray(flat[:, : 3 if size > 2 and values.type.value_field.name != "xym" else 2])


def _doubles(values: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def boxes_of(values: pa.Array, extension: str) -> npt.NDArray[np.float64]:
    """Return the boxes of values as `bounds_of` does; of native types without making geometries of them.

    Raises:
        ExpressionError: as `geometries_of`.
    """
    if extension not in NATIVE_DEPTHS or not is_geometry(extension, values.type):
        return bounds_of(geometries_of(values, extension))
    coordinates, offsets = _flattened(values, extension)
    corners = np.hstack([coordinates[:, :2], coordinates[:, :2]])
    if offsets:
        ends = offsets[0]
        for inner in offsets[1:]:
            ends = inner[ends]
        boxes = np.full((len(values), 4), np.nan)
        there = np.flatnonzero(ends[1:] > ends[:-1])
        if len(there):
            # One run ends where the next one begins.
            boxes[there, :2] = np.fmin.reduceat(corners[:, :2], ends[there], axis=0)
            boxes[there, 2:] = np.fmax.reduceat(corners[:, 2:], ends[there], axis=0)
        corners = boxes
    corners[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return corners


def bounds_of(geometries: Geometries) -> npt.NDArray[np.float64]:
    """Return xmin, ymin, xmax and ymax of geometries; NaN for those that are null or empty."""
    return np.asarray(shapes().bounds(geometries), dtype=np.float64).reshape(-1, 4)
