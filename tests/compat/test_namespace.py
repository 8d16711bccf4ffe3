"""`lance.namespace` of the stand-in: the same folders as pylance's, in turns with it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest

import spark_lance.compat.lance as ours
from spark_lance.compat.lance.namespace import DirectoryNamespace

Names = list[list[str]]


def rows(*ids: int) -> bytes:
    table = pa.table({"id": pa.array(ids, pa.int64())})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.fixture
def both(tmp_path: Path) -> tuple[DirectoryNamespace, Any]:
    root = str(tmp_path)
    theirs: Any = lance.namespace.DirectoryNamespace
    return DirectoryNamespace(root=root), theirs(root=root)


def outcome(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except api.LanceNamespaceError as error:
        return type(error).__name__
    return "done"


SPACES: Names = [["a"], ["b"], ["a", "c"]]
TABLES: Names = [["t"], ["a", "t"], ["a", "u"], ["b", "t"], ["a", "c", "t"]]
CALLS: dict[str, Callable[[Any, list[str]], Any]] = {
    "create_namespace": lambda at, name: at.create_namespace(api.CreateNamespaceRequest(id=name)),
    "drop_namespace": lambda at, name: at.drop_namespace(api.DropNamespaceRequest(id=name)),
    "create_table": lambda at, name: at.create_table(api.CreateTableRequest(id=name), rows(len(name))),
    "declare_table": lambda at, name: at.declare_table(api.DeclareTableRequest(id=name)),
    "drop_table": lambda at, name: at.drop_table(api.DropTableRequest(id=name)),
    "deregister_table": lambda at, name: at.deregister_table(api.DeregisterTableRequest(id=name)),
}


def state(namespace: Any) -> dict[str, Any]:
    """Return all that a namespace says of the names above."""
    contents: dict[str, Any] = {}
    for space in ([], *SPACES):
        there = outcome(namespace.namespace_exists, api.NamespaceExistsRequest(id=space))
        contents[f"space {space}"] = there
        if there == "done":
            listed = namespace.list_tables(api.ListTablesRequest(id=space)).tables
            inner = namespace.list_namespaces(api.ListNamespacesRequest(id=space)).namespaces
            contents[f"in {space}"] = (sorted(listed), sorted(inner))
    for table in TABLES:
        request = api.DescribeTableRequest(id=table, load_detailed_metadata=True)
        there = outcome(namespace.describe_table, request)
        contents[f"table {table}"] = there
        if there == "done":
            answer = namespace.describe_table(request)
            contents[f"of {table}"] = (
                answer.location.removeprefix("file://"),
                answer.version,
                answer.var_schema,
            )
    return contents


@pytest.mark.parametrize("seed", range(3))
def test_one_folder_for_both(both: tuple[DirectoryNamespace, Any], seed: int) -> None:
    """Each package sees what the other created, and refuses to create it again."""
    rng = random.Random(seed)
    for _ in range(20):
        first, second = both if rng.random() < 0.5 else both[::-1]
        verb = rng.choice([*CALLS, "create_namespace", "create_table"])
        name = rng.choice(SPACES if verb.endswith("namespace") else TABLES)
        parent = outcome(both[1].namespace_exists, api.NamespaceExistsRequest(id=name[:-1]))
        if parent != "done" and verb in ("create_table", "declare_table"):
            # pylance makes a table in a namespace that does not exist. We make the namespace, too.
            first, second = both
        outcome(CALLS[verb], first, name)
        again = outcome(CALLS[verb], second, name)
        # Tables of the root may have their name by their folder, too.
        if verb != "create_table" and len(name) > 1:
            assert again != "done", (verb, name)
        assert state(both[0]) == state(both[1]), (verb, name)


def test_rows_go_in_and_are_counted(both: tuple[DirectoryNamespace, Any]) -> None:
    mine, _ = both
    mine.create_table(api.CreateTableRequest(id=["t"]), rows(1, 2))
    response = mine.insert_into_table(api.InsertIntoTableRequest(id=["t"]), rows(3))
    assert (response.num_inserted_rows, response.version) == (1, 2)
    for namespace in both:
        counted = namespace.count_table_rows(api.CountTableRowsRequest(id=["t"], predicate="id > 1"))
        assert getattr(counted, "count", counted) == 2
    mine.create_table(api.CreateTableRequest(id=["t"], mode="Overwrite"), rows(9))
    assert mine.create_table(api.CreateTableRequest(id=["t"], mode="ExistOk"), rows(8)).version is None
    location = mine.describe_table(api.DescribeTableRequest(id=["t"])).location
    assert lance.dataset(location).to_table()["id"].to_pylist() == [9]


def test_pages_of_names(both: tuple[DirectoryNamespace, Any]) -> None:
    mine, theirs = both
    for name in "dbac":
        mine.create_table(api.CreateTableRequest(id=[name]), rows(1))
    pages = []
    for namespace in (mine, theirs):
        contents, token = [], None
        while True:
            page = namespace.list_tables(api.ListTablesRequest(id=[], limit=3, page_token=token))
            contents.append(page.tables)
            if not (token := page.page_token):
                break
        pages.append(contents)
    assert pages[0] == pages[1] == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("location", ["/etc", "s3://bucket/t", "../t", "a/../../t"])
def test_a_location_stays_inside(both: tuple[DirectoryNamespace, Any], location: str) -> None:
    for namespace in both:
        with pytest.raises(api.InvalidInputError, match="not allowed"):
            namespace.register_table(api.RegisterTableRequest(id=["t"], location=location))


def test_a_table_by_its_name(both: tuple[DirectoryNamespace, Any]) -> None:
    mine, theirs = both
    for mode, count in (("create", 2), ("append", 4), ("overwrite", 2)):
        ours.write_dataset(pa.table({"id": [1, 2]}), namespace_client=mine, table_id=["t"], mode=mode)
        assert ours.dataset(namespace_client=theirs, table_id=["t"]).count_rows() == count
    with pytest.raises(api.TableAlreadyExistsError):
        ours.write_dataset(pa.table({"id": [1]}), namespace_client=mine, table_id=["t"])
    with pytest.raises(api.TableNotFoundError):
        ours.write_dataset(pa.table({"id": [1]}), namespace_client=mine, table_id=["u"], mode="append")
    with pytest.raises(TypeError, match="or else by namespace_client and table_id"):
        ours.dataset("somewhere", namespace_client=mine, table_id=["t"])
    # A write that failed after it took its name may be done again.
    mine.declare_table(api.DeclareTableRequest(id=["v"]))
    ours.write_dataset(pa.table({"id": [1]}), namespace_client=mine, table_id=["v"])
    assert (
        theirs.describe_table(api.DescribeTableRequest(id=["v"], check_declared=True)).is_only_declared
        is False
    )


def test_settings_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(api.InvalidInputError, match="not known: rot"):
        DirectoryNamespace(rot=str(tmp_path))


def test_a_schema_as_json() -> None:
    leaves = [
        pa.int8(),
        pa.float16(),
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(9, 2),
        pa.binary(4),
    ]
    nested = [pa.list_(pa.int32()), pa.list_(pa.float32(), 4), pa.struct([pa.field("a", pa.int32(), False)])]
    fields = [pa.field(f"f{i}", kind, metadata={"k": "v"}) for i, kind in enumerate([*leaves, *nested])]
    schema = pa.schema(fields, metadata={"a": "b"})
    assert ours.schema_to_json(schema) == lance.schema_to_json(schema)
    contents = ours.json_to_schema(lance.schema_to_json(schema))
    assert contents.equals(schema, check_metadata=True)
    with pytest.raises(ValueError, match="map"):
        ours.schema_to_json(pa.schema([("m", pa.map_(pa.string(), pa.int32()))]))
    with pytest.raises(ValueError, match="describes no schema"):
        ours.json_to_schema({"fields": [{"name": "x"}]})
