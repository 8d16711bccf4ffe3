"""R-trees: built by either side, used by both, and no answer depends on them.

What is right is computed by shapely, one geometry at a time.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import shapely

import spark_lance
from spark_lance.errors import ColumnTypeError, ExpressionError, FormatError, OptionError
from spark_lance.index.scalar import rtree
from tests.geometries import LAYOUTS, geometry_table, random_shapes

PREDICATES = {
    "ST_Intersects": shapely.intersects,
    "ST_Contains": shapely.contains,
    "ST_Within": shapely.within,
    "ST_Touches": shapely.touches,
    "ST_Crosses": shapely.crosses,
    "ST_Overlaps": shapely.overlaps,
    "ST_Covers": shapely.covers,
    "ST_CoveredBy": shapely.covered_by,
    "ST_Disjoint": shapely.disjoint,
    "ST_Equals": shapely.equals,
}
# Which the index answers.
INDEXED = [name for name in PREDICATES if name != "ST_Disjoint"]


def wanted(shapes: dict[int, Any], test: Any) -> list[int]:
    return sorted(number for number, shape in shapes.items() if shape is not None and bool(test(shape)))


def conditions(shapes: dict[int, Any], rng: np.random.Generator) -> list[tuple[str, list[int], bool]]:
    """Return conditions, the rows that they keep, and whether pylance is asked, too."""
    window = shapely.box(*(rng.integers(0, 9, 2) / 2), *(rng.integers(10, 15, 2) / 2))
    there = [shape for shape in shapes.values() if shape is not None]
    known = there[int(rng.integers(0, len(there)))]
    results: list[tuple[str, list[int], bool]] = []
    has_empty = any(shape.is_empty for shape in there)
    for number, (name, test) in enumerate(PREDICATES.items()):
        other = known if (number + len(there)) % 2 else window
        text = f"ST_GeomFromText('{other.wkt}')"
        # Of what is empty or a collection, pylance says other things.
        plain = not has_empty and all(shape.geom_type != "GeometryCollection" for shape in (other, *there))
        request = plain and name in ("ST_Intersects", "ST_Within", "ST_Disjoint", "ST_CoveredBy")
        results.append((f"{name}(g, {text})", wanted(shapes, lambda s, t=test, o=other: t(s, o)), request))
        results.append((f"{name}({text}, g)", wanted(shapes, lambda s, t=test, o=other: t(o, s)), False))
    point = shapely.Point(rng.integers(0, 10), 4)
    near = f"ST_Distance(g, ST_Point({point.x}, {point.y})) <= 1.5"
    results.append((near, wanted(shapes, lambda s: not s.is_empty and s.distance(point) <= 1.5), False))
    results.append(("g is null", sorted(number for number, shape in shapes.items() if shape is None), True))
    both = wanted(shapes, lambda s: s.intersects(window))
    even = [number for number in both if number % 2 == 0]
    results.append((f"st_intersects(g, '{window.wkt}') and id % 2 = 0", even, False))
    nulls = [number for number, shape in shapes.items() if shape is None]
    results.append((f"g is null or st_intersects(g, '{window.wkt}')", sorted([*nulls, *both]), False))
    return results


def agree(
    path: Path, shapes: dict[int, Any], rng: np.random.Generator, *, both: bool = True, nulls: bool = True
) -> None:
    ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
    for number, (condition, right, request) in enumerate(conditions(shapes, rng)):
        for used in (True, False) if number % 3 == 0 else (True,):
            rows = ours.to_table(["id"], condition, use_scalar_index=used)["id"].to_pylist()
            assert sorted(rows) == right, (condition, used)
        if request and both and (nulls or condition != "g is null"):
            assert sorted(theirs.to_table(["id"], condition)["id"].to_pylist()) == right, condition


# pylance takes no coordinates side by side.
BY_PYLANCE = [layout for layout in LAYOUTS if layout != "point interleaved"]
FEW = ("point", "multipolygon", "wkb")


@pytest.mark.parametrize(
    ("builder", "layout"),
    [
        *(("ours", layout) for layout in LAYOUTS),
        *(
            pytest.param("pylance", layout, marks=() if layout in FEW else pytest.mark.slow)
            for layout in BY_PYLANCE
        ),
    ],
)
def test_every_layout(tmp_path: Path, layout: str, builder: str) -> None:
    rng = np.random.default_rng(list(LAYOUTS).index(layout))
    path = tmp_path / "t"
    shapes = random_shapes(layout, 100, rng)
    if builder == "pylance":
        lance.write_dataset(geometry_table(layout, shapes), str(path), max_rows_per_file=40)
        lance.dataset(str(path)).create_scalar_index("g", "RTREE")
    else:
        ds = spark_lance.write_dataset(geometry_table(layout, shapes), path, max_rows_per_file=40)
        ds.create_scalar_index("g", "RTREE")
    ours = spark_lance.dataset(path)
    for name in INDEXED:
        assert "g_idx" in ours.scanner(filter=f"{name}(g, 'POINT(1 1)')").explain_plan()
    if layout in BY_PYLANCE:
        plan = lance.dataset(str(path)).scanner(filter="ST_Intersects(g, 'POINT(1 1)')").explain_plan()
        assert "ScalarIndexQuery" in plan
    agree(path, dict(enumerate(shapes)), rng, both=layout in BY_PYLANCE)


def history(path: Path, layout: str, seed: int, steps: int, stable: bool) -> None:
    """Let either side append, delete, update, compact and index in turns, and compare after each step."""
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    shapes = dict(enumerate(random_shapes(layout, 90, rng)))
    spark_lance.write_dataset(
        geometry_table(layout, list(shapes.values())),
        path,
        max_rows_per_file=40,
        enable_stable_row_ids=stable,
    ).create_scalar_index("g", "RTREE")
    top, extra = 90, 0
    for _ in range(steps):
        mine = choose.random() < 0.5
        table: Any = spark_lance.dataset(path) if mine else lance.dataset(str(path))
        step = choose.choice(["append", "delete", "merge", "compact", "optimize", "rebuild", "column"])
        if step == "append":
            new = random_shapes(layout, 20, rng)
            write = spark_lance.write_dataset if mine else lance.write_dataset
            write(with_columns(geometry_table(layout, new, top), extra), str(path), mode="append")
            shapes |= dict(enumerate(new, top))
            top += 20
        elif step == "delete":
            remaining = choose.randrange(3, 7)
            table.delete(f"id % {remaining} = 1")
            shapes = {number: shape for number, shape in shapes.items() if number % remaining != 1}
        elif step == "merge":
            numbers = choose.sample(sorted(shapes), 12)
            new = random_shapes(layout, 12, rng)
            rows = geometry_table(layout, new).set_column(0, "id", pa.array(numbers))
            table.merge_insert("id").when_matched_update_all().execute(with_columns(rows, extra))
            shapes |= dict(zip(numbers, new, strict=True))
        elif step == "compact":
            table.optimize.compact_files(target_rows_per_fragment=100)
        elif step == "optimize":
            table.optimize.optimize_indices()
        elif step == "rebuild":
            table.create_scalar_index("g", "RTREE", replace=True)
        else:
            table.add_columns({f"more{extra}": "id + 1"})
            extra += 1
        # With stable row ids pylance goes on to find rows that were null when it merged an index.
        agree(path, shapes, rng, nulls=not stable)


def with_columns(rows: pa.Table, extra: int) -> pa.Table:
    for number in range(extra):
        rows = rows.append_column(f"more{number}", pa.array([0] * len(rows), pa.int64()))
    return rows


@pytest.mark.parametrize(("layout", "stable"), [("wkb", False), ("polygon", True)])
def test_histories(tmp_path: Path, layout: str, stable: bool) -> None:
    history(tmp_path / "t", layout, 3, 4, stable)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_histories_at_length(tmp_path: Path, seed: int) -> None:
    layout = BY_PYLANCE[seed % len(BY_PYLANCE)]
    history(tmp_path / "t", layout, 100 + seed, 25, bool(seed % 2))


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 9000])
def test_levels_are_those_of_pylance(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(5)
    points = shapely.points(rng.random((count, 2)) * [1000, 10])
    schema = pa.schema([pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})])
    rows = pa.table([pa.array([*shapely.to_wkb(points), None], pa.binary())], schema=schema)
    files: dict[str, Any] = {}
    for builder, module in (("ours", spark_lance), ("pylance", lance)):
        path = tmp_path / builder
        table: Any = module.write_dataset(rows, str(path))
        table.create_scalar_index("g", "RTREE")
        segment = next(Path(path, "_indices").iterdir())
        reader = lance.file.LanceFileReader(str(segment / "page_data.lance"))
        result = reader.read_all().to_table()
        notes = {key.decode(): json.loads(value) for key, value in reader.metadata().schema.metadata.items()}
        items = result.slice(0, notes["num_items"])
        boxes = items.sort_by("id").to_pylist()
        nulls = lance.file.LanceFileReader(str(segment / "nulls.lance")).read_all().to_table().to_pylist()
        levels = [(row["id"], None) for row in result.slice(notes["num_items"]).to_pylist()]
        files[builder] = (result.schema, notes, boxes, nulls, levels)
        # Neighbours on the curve lie close together.
        if count > 4096:
            sides = items["bbox"].combine_chunks().flatten()
            steps = np.abs(np.diff(sides[0].to_numpy())) / 1000 + np.abs(np.diff(sides[1].to_numpy())) / 10
            assert steps.mean() < 0.05
    assert files["ours"] == files["pylance"]


def test_only_pages_that_meet_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    values = rng.random((60_000, 2)) * 100
    fields = [pa.field(name, pa.float64(), nullable=False) for name in "xy"]
    points = pa.StructArray.from_arrays([pa.array(values[:, 0]), pa.array(values[:, 1])], fields=fields)
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("g", points.type, metadata={"ARROW:extension:name": "geoarrow.point"}),
        ]
    )
    rows = pa.table([pa.array(range(60_000)), points], schema=schema)
    actual = spark_lance.write_dataset(rows, tmp_path / "t").create_scalar_index("g", "RTREE")
    read: list[int] = []
    plain = rtree._read_rows

    def counted(file: Any, start: int, stop: int) -> Any:
        read.append(stop - start)
        return plain(file, start, stop)

    monkeypatch.setattr(rtree, "_read_rows", counted)
    result = actual.to_table(["id"], "ST_Within(g, 'POLYGON((10 10,12 10,12 12,10 12,10 10))')")
    inside = ((values > 10) & (values < 12)).all(axis=1)
    assert sorted(result["id"].to_pylist()) == np.flatnonzero(inside).tolist()
    assert 15 <= sum(read) < 30_000


def test_parts_are_merged(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    shapes = random_shapes("wkb", 200, rng)
    ds = spark_lance.write_dataset(geometry_table("wkb", shapes), tmp_path / "t", max_rows_per_file=60)
    entries = [
        ds.create_index_uncommitted("g", "RTREE", fragment_ids=[fragment.fragment_id])
        for fragment in ds.get_fragments()
    ]
    merged = ds.merge_existing_index_segments(entries)
    ds.commit_existing_index_segments("g_idx", "g", [merged])
    assert lance.dataset(str(tmp_path / "t")).stats.index_stats("g_idx")["num_indexed_rows"] == 200
    agree(tmp_path / "t", dict(enumerate(shapes)), rng)


def test_what_cannot_be_indexed(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "s": [{"x": 1.0, "y": 2.0}], "t": ["no geometry"]})
    ds = spark_lance.write_dataset(rows, tmp_path / "t")
    for column in ("n", "s"):
        with pytest.raises(ColumnTypeError, match="cannot have an index RTREE"):
            ds.create_scalar_index(column, "RTREE")
    with pytest.raises(ExpressionError, match="invalid geometry"):
        ds.create_scalar_index("t", "RTREE")
    with pytest.raises(OptionError, match="takes no options: leave out page_size"):
        ds.create_scalar_index("t", "RTREE", page_size=7)
    assert not (tmp_path / "t" / "_indices").exists() or not any((tmp_path / "t" / "_indices").iterdir())


@pytest.mark.parametrize(
    ("note", "old", "new"),
    [
        ("num_items", "7", "5"),
        ("num_items", "7", "x"),
        ("page_size", "4096", "0001"),
        ("num_pages", "1", "9"),
    ],
)
def test_numbers_that_do_not_fit(tmp_path: Path, note: str, old: str, new: str) -> None:
    shapes = [shapely.Point(number, 1) for number in range(7)]
    ds = spark_lance.write_dataset(geometry_table("wkb", shapes), tmp_path / "t")
    ds.create_scalar_index("g", "RTREE")
    file = next(Path(tmp_path, "t", "_indices").rglob("page_data.lance"))
    # The value of an entry of a map in the message of the schema.
    before, after = (note.encode() + bytes([0x12, len(old)]) + text.encode() for text in (old, new))
    data = file.read_bytes()
    assert data.count(before) == 1
    file.unlink()
    file.write_bytes(data.replace(before, after))
    with pytest.raises(FormatError, match=r"R-tree|pages of|malformed"):
        spark_lance.dataset(tmp_path / "t").to_table(filter="ST_Intersects(g, 'POINT(1 1)')")
