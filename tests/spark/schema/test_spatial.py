"""Geometries in Spark: columns of GeoArrow types, and Spark's own types where it has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
import shapely

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.spark.base.compat import GeometryType
from tests.geometries import geometry_table, random_shapes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = [shapely.Point(number, number % 5) for number in range(40)]
SPATIAL = pytest.mark.skipif(GeometryType is None, reason="Spark 4.0 has no such types")


def table(path: Path, crs: str | None = "OGC:CRS84") -> Path:
    rows = geometry_table("wkb", [*POINTS, None])
    metadata = {"ARROW:extension:name": "geoarrow.wkb"}
    metadata["ARROW:extension:metadata"] = "{}" if crs is None else f'{{"crs": "{crs}"}}'
    field = rows.schema.field("g").with_metadata(metadata)
    spark_lance.write_dataset(rows.set_column(1, field, rows["g"]), path).create_scalar_index("g", "RTREE")
    return path


def test_filters_and_copies(spark: SparkSession, tmp_path: Path) -> None:
    path = str(table(tmp_path / "t"))
    window = "ST_Within(g, 'POLYGON((5 -1, 15 -1, 15 9, 5 9, 5 -1))')"
    result = spark.read.format("lance").option("filter", window).load(path)
    assert sorted(row.id for row in result.collect()) == list(range(6, 15))
    result.write.format("lance").mode("append").save(str(tmp_path / "copy"))
    copied = lance.dataset(str(tmp_path / "copy"))
    assert copied.schema.field("g").metadata == lance.dataset(path).schema.field("g").metadata
    assert copied.count_rows(window) == 9


def test_native_columns_by_option(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    frame = spark.sql(
        "SELECT id, named_struct('x', double(id), 'y', 0D) AS p, "
        "array(named_struct('x', double(id), 'y', 0D), named_struct('x', 9D, 'y', 1D)) AS l FROM range(20)"
    )
    options = {"p.lance.geometry": "geoarrow.point", "l.lance.geometry": "geoarrow.linestring"}
    frame.write.format("lance").mode("append").options(**options).save(path)
    theirs = lance.dataset(path)
    assert theirs.count_rows("ST_X(p) < 5") == 5
    assert theirs.count_rows("ST_Intersects(l, 'POINT(9 1)')") == 20
    spark.read.format("lance").load(path).write.format("lance").mode("append").save(str(tmp_path / "copy"))
    assert spark_lance.dataset(tmp_path / "copy").count_rows("ST_Intersects(p, 'POINT(7 0)')") == 1
    wrong = frame.write.format("lance").mode("append").option("p.lance.geometry", "geoarrow.polygon")
    with pytest.raises(Exception, match=r"cannot be stored as geoarrow\.polygon"):
        wrong.save(str(tmp_path / "no"))


@SPATIAL
def test_spatial_types_are_read_on_request(spark: SparkSession, tmp_path: Path) -> None:
    path = str(table(tmp_path / "t"))
    read = spark.read.format("lance").option("geometry_as", "geometry").load(path)
    assert read.schema["g"].dataType.simpleString() == "geometry(4326)"
    results: dict[int, Any] = {row.id: row.g for row in read.collect()}
    assert results[40] is None
    assert [bytes(results[n].getBytes()) for n in range(40)] == [shapely.to_wkb(point) for point in POINTS]
    assert {results[n].getSrid() for n in range(40)} == {4326}
    plain = spark.read.format("lance").load(path)
    assert plain.schema["g"].dataType.simpleString() == "binary"


@SPATIAL
def test_spatial_types_are_written(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.read.format("lance").option("geometry_as", "geometry").load(str(table(tmp_path / "t")))
    path = str(tmp_path / "new")
    source.write.format("lance").mode("append").save(path)
    source.where("id < 3").write.format("lance").mode("append").save(path)
    ds = lance.dataset(path)
    metadata = ds.schema.field("g").metadata
    assert metadata[b"ARROW:extension:name"] == b"geoarrow.wkb"
    assert b"OGC:CRS84" in metadata[b"ARROW:extension:metadata"]
    stored = ds.to_table().sort_by("id")
    right = sorted([*range(41), 0, 1, 2])
    assert stored["id"].to_pylist() == right
    shapes = [shapely.to_wkb(POINTS[n]) if n < 40 else None for n in right]
    assert stored["g"].to_pylist() == shapes
    assert spark_lance.dataset(path).count_rows("ST_X(g) = 1") == 2


def test_spatial_references(tmp_path: Path) -> None:
    from spark_lance.spark.schema.spatial import spatial_type

    def seen(metadata: str) -> str:
        names = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": metadata}
        return spatial_type(pa.field("g", pa.binary(), metadata=names)).simpleString()

    if GeometryType is None:
        with pytest.raises(SchemaError, match=r"4\.1"):
            seen("{}")
        return
    assert seen("{}") == seen("no JSON") == seen("[]") == seen('{"crs": "mars"}') == "geometry(0)"
    assert seen('{"crs": "EPSG:3857"}') == "geometry(3857)"
    assert seen('{"crs": {"id": {"authority": "EPSG", "code": 4326}}}') == "geometry(4326)"
    assert seen('{"edges": "spherical"}') == "geography(4326)"


def test_any_geometry(spark: SparkSession, tmp_path: Path) -> None:
    import numpy as np

    shapes = random_shapes("wkb", 50, np.random.default_rng(3))
    spark_lance.write_dataset(geometry_table("wkb", shapes), tmp_path / "t")
    read = spark.read.format("lance").load(str(tmp_path / "t")).collect()
    assert [None if row.g is None else bytes(row.g) for row in sorted(read, key=lambda row: row.id)] == [
        None if shape is None else shapely.to_wkb(shape) for shape in shapes
    ]
