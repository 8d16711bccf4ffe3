"""Functions of geometries against shapely, value by value, and against pylance where both say the same."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import shapely

import spark_lance
from spark_lance.errors import ExpressionError, OptionError
from spark_lance.expressions import geo_functions
from tests.geometries import LAYOUTS, geometry_table, random_shapes

MEASURES: dict[str, Any] = {
    "st_area": lambda g: g.area,
    "st_length": lambda g: g.length if shapely.get_dimensions(g) == 1 else 0.0,
    "st_x": lambda g: g.x if g.geom_type == "Point" and not g.is_empty else None,
    "st_y": lambda g: g.y if g.geom_type == "Point" and not g.is_empty else None,
    "st_xmin": lambda g: None if g.is_empty else g.bounds[0],
    "st_ymin": lambda g: None if g.is_empty else g.bounds[1],
    "st_xmax": lambda g: None if g.is_empty else g.bounds[2],
    "st_ymax": lambda g: None if g.is_empty else g.bounds[3],
    "st_isempty": lambda g: g.is_empty,
    "st_isvalid": lambda g: g.is_valid,
    "st_npoints": lambda g: len(shapely.get_coordinates(g)),
    "st_geometrytype": lambda g: f"ST_{g.geom_type}",
    "st_asbinary": lambda g: shapely.to_wkb(g, flavor="iso"),
}
# What pylance has no null for, or a number for collections.
WINDOW = "POLYGON((9 0,20 0,20 3,9 0))"
OTHERWISE = ("st_x", "st_y", "st_xmin", "st_ymin", "st_xmax", "st_ymax", "st_length", "st_area")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_measures(tmp_path: Path, layout: str) -> None:
    shapes = random_shapes(layout, 60, np.random.default_rng(2))
    ours = spark_lance.write_dataset(geometry_table(layout, shapes), tmp_path / "t")
    result = ours.to_table({name: f"{name}(g)" for name in [*MEASURES, "st_astext"]})
    for name, measure in MEASURES.items():
        right: list[Any] = [None if shape is None else measure(shape) for shape in shapes]
        got = result[name].to_pylist()
        assert [value is None for value in got] == [value is None for value in right], name
        for value, other in zip(got, right, strict=True):
            assert value == other or math.isclose(value, other, rel_tol=1e-12), name
    for text, shape in zip(result["st_astext"].to_pylist(), shapes, strict=True):
        assert (text is None) == (shape is None)
        assert text is None or shapely.equals_identical(shapely.from_wkt(text), shapely.from_wkt(shape.wkt))


@pytest.mark.parametrize("layout", ["point", "linestring", "polygon", "multipolygon", "wkt"])
def test_measures_are_those_of_pylance(tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(3)
    shapes = [shape for shape in random_shapes(layout, 60, rng) if shape is not None and not shape.is_empty]
    rows = geometry_table(layout, shapes)
    requests = [name for name in [*MEASURES, "st_astext"] if layout != "wkt" or name not in OTHERWISE]
    if layout == "wkt":
        requests.remove("st_astext")
    columns = {name: f"{name}(g)" for name in requests}
    if layout != "point":
        # They are null for others, which pylance has no column for.
        columns = {name: text for name, text in columns.items() if name not in ("st_x", "st_y")}
    ours = spark_lance.write_dataset(rows, tmp_path / "t").to_table(columns)
    theirs = lance.dataset(str(tmp_path / "t")).to_table(columns)
    for name in columns:
        for one, other in zip(ours[name].to_pylist(), theirs[name].to_pylist(), strict=True):
            assert one == other or math.isclose(one, other, rel_tol=1e-12), name


def constant(expression: str) -> Any:
    from spark_lance.expressions.predicate import compile_expression

    return compile_expression(expression, pa.schema([])).evaluate(pa.table({"n": [1]}))[0].as_py()


def test_constants() -> None:
    assert constant("ST_AsText(ST_GeomFromText('POINT Z (1 2 3)'))") == "POINT Z(1 2 3)"
    assert constant("st_z('POINT Z (1 2 3)')") == 3
    assert constant("st_z('POINT (1 2)')") is None
    assert constant("st_astext(st_geomfromwkb(st_asbinary(st_point(1, 2.5))))") == "POINT(1 2.5)"
    assert constant("st_astext(st_makepoint(1, null))") is None
    assert constant("st_distance('POINT(0 0)', st_point(3, 4))") == 5
    assert constant("st_distance('POINT EMPTY', st_point(3, 4))") is None
    assert constant("st_intersects(null, 'POINT(1 1)')") is None
    assert constant("st_contains('POLYGON((0 0,4 0,4 4,0 4,0 0))', st_point(1, 1))") is True
    assert constant("st_astext('MULTIPOINT(0 0,1 1)')") == "MULTIPOINT((0 0),(1 1))"


def test_two_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    one, other = (random_shapes("wkb", 80, rng) for _ in range(2))
    rows = geometry_table("wkb", one).append_column("h", geometry_table("wkt", other)["g"])
    ours = spark_lance.write_dataset(rows, tmp_path / "t").create_scalar_index("g", "RTREE")
    for name, test in (("st_intersects", shapely.intersects), ("st_covers", shapely.covers)):
        right = [
            number
            for number, (a, b) in enumerate(zip(one, other, strict=True))
            if a is not None and b is not None and test(a, b)
        ]
        assert ours.to_table(["id"], f"{name}(g, h)")["id"].to_pylist() == right


def test_columns_keep_what_they_are(tmp_path: Path) -> None:
    """Values and metadata come back, by either side, after a write by either."""
    for number, layout in enumerate(LAYOUTS):
        shapes = random_shapes(layout, 30, np.random.default_rng(number))
        rows = geometry_table(layout, shapes)
        for module in (spark_lance, lance):
            if module is lance and "interleaved" in layout:
                # It refuses numbers under a null.
                continue
            path = str(tmp_path / f"{number}{module.__name__}")
            module.write_dataset(rows, path)
            for reader in (spark_lance, lance):
                result = reader.dataset(path).to_table()
                assert result.equals(rows.cast(result.schema)), layout
                if "interleaved" not in layout:
                    # The format has no name for what is in lists of a fixed size.
                    assert result.schema.field("g").type == rows.schema.field("g").type
                assert result.schema.field("g").metadata == rows.schema.field("g").metadata


def test_columns_in_structs(tmp_path: Path) -> None:
    shapes = [shapely.Point(number, 1) for number in range(20)]
    inner = geometry_table("wkb", shapes)
    struct = pa.StructArray.from_arrays(
        [inner["g"].combine_chunks()], fields=[inner.schema.field("g").with_name("shape")]
    )
    ds = spark_lance.write_dataset(pa.table({"id": inner["id"], "s": struct}), tmp_path / "t")
    ds = ds.create_scalar_index("s.shape", "RTREE")
    condition = "ST_Within(s.shape, 'POLYGON((2 0,5 0,5 3,2 3,2 0))')"
    assert "s.shape_idx" in ds.scanner(filter=condition).explain_plan()
    assert ds.to_table(["id"], condition)["id"].to_pylist() == [3, 4]


def test_changes_by_conditions(tmp_path: Path) -> None:
    shapes = [shapely.Point(number, 1) for number in range(50)]
    ds = spark_lance.write_dataset(geometry_table("wkb", shapes), tmp_path / "t")
    ds = ds.create_scalar_index("g", "RTREE")
    ds = ds.delete("st_x(g) < 10")
    ds.update({"g": "st_asbinary(st_point(100, 100))"}, where=f"st_within(g, '{WINDOW}')")
    ds = spark_lance.dataset(tmp_path / "t")
    moved = ds.to_table(["id"], "st_equals(g, 'POINT(100 100)')")["id"].to_pylist()
    window = shapely.from_wkt(WINDOW)
    assert moved == [number for number in range(10, 20) if shapely.within(shapes[number], window)]
    ds = ds.add_columns({"far": "st_distance(g, 'POINT(0 1)')"})
    assert ds.to_table(["far"], "id = 30")["far"].to_pylist() == [30.0]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("st_intersects(g, 'nonsense')", "invalid geometry"),
        ("st_intersects(g, X'0102')", "invalid geometry"),
        ("st_intersects(id, g)", "not int64"),
        ("st_intersects(g, 7)", "not 7"),
        ("st_intersects(g)", "does not take 1 arguments"),
        ("st_buffer(g, 1) is null", "st_buffer is not supported"),
        ("st_isempty(st_geomfromtext(id))", "takes well-known text"),
        ("geometry(g, 'x') is null", "not supported"),
    ],
)
def test_what_is_refused(tmp_path: Path, condition: str, message: str) -> None:
    ds = spark_lance.write_dataset(geometry_table("wkb", [shapely.Point(1, 1)]), tmp_path / "t")
    with pytest.raises(ExpressionError, match=message):
        ds.to_table(filter=condition)


def test_damaged_values(tmp_path: Path) -> None:
    field = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    rows = pa.table([pa.array([b"\x01\x07"], pa.binary())], schema=pa.schema([field]))
    ds = spark_lance.write_dataset(rows, tmp_path / "t")
    with pytest.raises(ExpressionError, match="invalid geometry"):
        ds.count_rows("st_isempty(g)")


def test_without_shapely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are read and written all the same; functions say what to install."""
    geo_functions.shapes.cache_clear()
    monkeypatch.setitem(sys.modules, "shapely", None)
    ds = spark_lance.write_dataset(geometry_table("point", []), tmp_path / "t")
    assert ds.to_table().num_rows == 0
    with pytest.raises(OptionError, match=r"spark-lance\[geo\]"):
        ds.count_rows("st_isempty(g)")
