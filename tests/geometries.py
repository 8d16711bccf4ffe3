"""Random geometries for tests, in every layout in which columns may have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

__all__ = ["LAYOUTS", "geometry_field", "geometry_table", "random_shapes"]

_NAME = "ARROW:extension:name"


def _point(rng: np.random.Generator) -> Any:
    # Halves, so that edges and corners are met.
    return shapely.Point(*(rng.integers(0, 21, 2) / 2))


def _line(rng: np.random.Generator) -> Any:
    return shapely.LineString(np.unique(rng.integers(0, 21, (int(rng.integers(3, 6)), 2)), axis=0) / 2)


def _polygon(rng: np.random.Generator) -> Any:
    x, y = rng.integers(0, 17, 2) / 2
    width, height = rng.integers(1, 7, 2) / 2
    outer = shapely.box(x, y, x + width, y + height)
    hole = shapely.box(x + width / 4, y + height / 4, x + width / 2, y + height / 2)
    return outer.difference(hole) if rng.random() < 0.4 else outer


def _box(rng: np.random.Generator) -> Any:
    return shapely.box(*_polygon(rng).bounds)


def _many(make: Callable[[np.random.Generator], Any], kind: Any) -> Callable[[np.random.Generator], Any]:
    def made(rng: np.random.Generator) -> Any:
        parts = [make(rng) for _ in range(int(rng.integers(1, 4)))]
        if kind is shapely.MultiPolygon:
            apart = [shapely.transform(part, lambda c, i=i: c + 20 * i) for i, part in enumerate(parts)]
            return kind(apart)
        return kind(parts)

    return made


def _any(rng: np.random.Generator) -> Any:
    makers = [
        _point,
        _line,
        _polygon,
        _many(_point, shapely.MultiPoint),
        _many(_any_flat, shapely.GeometryCollection),
    ]
    return makers[int(rng.integers(0, len(makers)))](rng)


def _any_flat(rng: np.random.Generator) -> Any:
    return (_point, _line, _polygon)[int(rng.integers(0, 3))](rng)


def _coordinates(dimensions: int, interleaved: bool) -> pa.DataType:
    names = "xyz"[:dimensions]
    if interleaved:
        return pa.list_(pa.field(names, pa.float64(), nullable=False), dimensions)
    return pa.struct([pa.field(name, pa.float64(), nullable=False) for name in names])


def _layout(depth: int, coordinates: pa.DataType) -> pa.DataType:
    kind = coordinates
    for name in ("vertices", "rings", "polygons")[:depth]:
        kind = pa.list_(pa.field(name, kind, nullable=False))
    return kind


_SEPARATED = _coordinates(2, interleaved=False)
_BOX = pa.struct([pa.field(name, pa.float64(), nullable=False) for name in ("xmin", "ymin", "xmax", "ymax")])

# Name of the layout -> extension name, Arrow type, a maker of geometries, and an empty one if there can be.
LAYOUTS: dict[str, tuple[str, pa.DataType, Callable[[np.random.Generator], Any], Any]] = {
    "point": ("geoarrow.point", _SEPARATED, _point, None),
    "point interleaved": ("geoarrow.point", _coordinates(2, interleaved=True), _point, None),
    "linestring": ("geoarrow.linestring", _layout(1, _SEPARATED), _line, shapely.LineString()),
    "multipoint": (
        "geoarrow.multipoint",
        _layout(1, _SEPARATED),
        _many(_point, shapely.MultiPoint),
        shapely.MultiPoint(),
    ),
    "polygon": ("geoarrow.polygon", _layout(2, _SEPARATED), _polygon, shapely.Polygon()),
    "multilinestring": (
        "geoarrow.multilinestring",
        _layout(2, _SEPARATED),
        _many(_line, shapely.MultiLineString),
        shapely.MultiLineString(),
    ),
    "multipolygon": (
        "geoarrow.multipolygon",
        _layout(3, _SEPARATED),
        _many(_polygon, shapely.MultiPolygon),
        shapely.MultiPolygon(),
    ),
    "box": ("geoarrow.box", _BOX, _box, None),
    "wkb": ("geoarrow.wkb", pa.binary(), _any, shapely.Polygon()),
    "ogc wkb": ("ogc.wkb", pa.large_binary(), _any, shapely.GeometryCollection()),
    "wkt": ("geoarrow.wkt", pa.string(), _any, shapely.LineString()),
    "binary": ("", pa.binary(), _any, shapely.LineString()),
}


def random_shapes(layout: str, count: int, rng: np.random.Generator) -> list[Any]:
    """Return geometries that fit a layout, some of them None or empty."""
    _, _, make, empty = LAYOUTS[layout]
    chances = rng.random(count)
    return [None if c < 0.08 else empty if c < 0.14 and empty is not None else make(rng) for c in chances]


def geometry_field(layout: str, name: str = "g") -> pa.Field:
    """Return the field of a layout."""
    extension, kind, _, _ = LAYOUTS[layout]
    return pa.field(name, kind, metadata={_NAME: extension} if extension else None)


def geometry_table(layout: str, shapes: Sequence[Any], first: int = 0) -> pa.Table:
    """Return a table with numbers from `first` on in column id, and geometries in column g."""
    field = geometry_field(layout)
    schema = pa.schema([pa.field("id", pa.int64()), field])
    values = [None if shape is None else _stored(shape, field.type, layout) for shape in shapes]
    return pa.table(
        [pa.array(range(first, first + len(shapes))), pa.array(values, field.type)], schema=schema
    )


def _stored(shape: Any, kind: pa.DataType, layout: str) -> Any:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return shapely.to_wkb(shape)
    if pa.types.is_string(kind):
        return shapely.to_wkt(shape, rounding_precision=-1)
    if layout == "box":
        return dict(zip(("xmin", "ymin", "xmax", "ymax"), shape.bounds, strict=True))
    return _nested(shape, "interleaved" in layout)


def _nested(shape: Any, interleaved: bool) -> Any:
    if shape.geom_type == "Point":
        return _row(shape.coords[0], interleaved)
    if shape.geom_type == "LineString":
        return [_row(c, interleaved) for c in shape.coords]
    if shape.geom_type == "Polygon":
        rings = [] if shape.is_empty else [shape.exterior, *shape.interiors]
        return [[_row(c, interleaved) for c in ring.coords] for ring in rings]
    return [_nested(part, interleaved) for part in shape.geoms]


def _row(coordinate: Any, interleaved: bool) -> Any:
    return list(coordinate) if interleaved else dict(zip("xyz", coordinate, strict=False))
