"""Settings and metadata: updates by us and by pylance, and which of them exclude each other."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import (
    LanceError,
    RetryableConflictError,
    SchemaError,
    UnsupportedFormatError,
)
from spark_lance.io.store import open_store
from spark_lance.proto import transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.features import TABLE_CONFIG
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.versions.versions import load_latest

ROWS = pa.table(
    {"a": pa.array([1, 2], pa.int64()), "s": pa.array([{"x": 1}, {"x": 2}], pa.struct({"x": pa.int64()}))}
)
KEY = "lance-schema:unenforced-primary-key"


def theirs(path: Path, version: int | None = None) -> Any:
    """Open a table with pylance."""
    return lance.dataset(str(path), version=version)


# The methods have the same names on both sides.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "set": lambda d: d.update_config({"k": "1", "z": "2"}),
    "set and delete": lambda d: d.update_config({"k": None, "m": "3"}),
    "replace": lambda d: d.update_config({"n": "4"}, replace=True),
    "delete": lambda d: d.delete_config_keys(["n", "missing"]),
    "metadata": lambda d: d.update_metadata({"k": "1", "l": "2"}),
    "metadata delete": lambda d: d.update_metadata({"k": None}),
    "schema": lambda d: d.update_schema_metadata({"k": "ü", "l": ""}),
    "schema replace": lambda d: d.update_schema_metadata({"n": "4"}, replace=True),
    "fields": lambda d: d.update_field_metadata({"a": {"k": "1"}, "s.x": {"k": "ß", "l": "2"}}),
    "fields delete": lambda d: d.update_field_metadata({"s.x": {"k": None}}),
    "fields replace": lambda d: d.update_field_metadata({"a": {"n": "4"}}, replace=True),
    "nothing": lambda d: d.update_config({}),
}


def entries(transaction: Transaction) -> list[Any]:
    """Return what an update's transaction says, without the order of entries."""
    operation = transaction.message.update_config
    maps = [operation.config_updates, operation.table_metadata_updates, operation.schema_metadata_updates]
    fields = sorted(operation.field_metadata_updates)
    maps += [operation.field_metadata_updates[number] for number in fields]
    return [fields, [(m.replace, sorted(e.SerializeToString() for e in m.update_entries)) for m in maps]]


def state(path: Path) -> tuple[Any, ...]:
    """Return everything of the newest manifest that a config update may touch."""
    message = load_latest(TableRef(*open_store(path))).message
    texts = [dict(message.config), dict(message.table_metadata), dict(message.schema_metadata)]
    fields = [(field.name, dict(field.metadata)) for field in message.fields]
    return texts, fields, message.reader_feature_flags, message.writer_feature_flags, message.version


def test_every_update_ends_as_with_pylance(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, tmp_path / "lance")
    lance.write_dataset(ROWS, tmp_path / "ours")
    for name, change in CHANGES.items():
        change(theirs(tmp_path / "lance"))
        ours = change(spark_lance.dataset(tmp_path / "ours"))
        assert state(tmp_path / "ours") == state(tmp_path / "lance"), name
        assert ours.config() == theirs(tmp_path / "ours").config()
        assert ours.metadata == theirs(tmp_path / "ours").metadata
        assert ours.schema.equals(theirs(tmp_path / "ours").schema, check_metadata=True)
        written = [
            read_transaction(
                TableRef(*open_store(tmp_path / side)), load_latest(TableRef(*open_store(tmp_path / side)))
            )
            for side in ("lance", "ours")
        ]
        assert entries(written[0]) == entries(written[1]), name
        assert ours.to_table()["a"] == ROWS["a"]


def test_turns_and_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    dataset = spark_lance.dataset(path).update_config({"k": "1"})
    assert dataset.manifest.message.writer_feature_flags == TABLE_CONFIG
    assert not dataset.manifest.message.reader_feature_flags
    theirs(path).update_config({"l": "2"})
    assert spark_lance.dataset(path).config() == {"k": "1", "l": "2"}
    dataset = spark_lance.dataset(path).delete_config_keys(["k", "l"])
    assert not dataset.manifest.message.writer_feature_flags
    assert theirs(path).config() == {}
    assert theirs(path).to_table() == ROWS


# One change of each kind for the pairs below, which begin from one config key and two columns.
PAIRED: dict[str, Callable[[Any], Any]] = {
    "set k": lambda d: d.update_config({"k": "2"}),
    "set z": lambda d: d.update_config({"z": "2"}),
    "replace": lambda d: d.update_config({"z": "2"}, replace=True),
    "delete k": lambda d: d.delete_config_keys(["k"]),
    "metadata k": lambda d: d.update_metadata({"k": "2"}),
    "metadata z": lambda d: d.update_metadata({"z": "2"}),
    "schema k": lambda d: d.update_schema_metadata({"k": "2"}),
    "schema nothing": lambda d: d.update_schema_metadata({}),
    "field a": lambda d: d.update_field_metadata({"a": {"k": "2"}}),
    "field a too": lambda d: d.update_field_metadata({"a": {"z": "2"}}),
    "field x": lambda d: d.update_field_metadata({"s.x": {"k": "2"}}),
}
THEIRS: dict[str, Callable[[Any], Any]] = {
    **PAIRED,
    "overwrite": lambda d: lance.write_dataset(ROWS, d, mode="overwrite"),
    "add": lambda d: d.add_columns({"c": "a"}),
    "drop": lambda d: d.drop_columns(["s"]),
    "restore": lambda d: d.restore(),
    "delete": lambda d: d.delete("a = 1"),
}


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except RetryableConflictError:
        return "retry"
    except SchemaError:
        return "gone"
    except (LanceError, OSError) as error:
        text = str(error)
        if "does not exist" in text:
            return "gone"
        return "retry" if "Retryable" in text else "incompatible" if "ncompatible" in text else text
    return "fine"


@pytest.mark.parametrize("second", PAIRED)
def test_pairs_end_as_with_pylance(tmp_path: Path, second: str) -> None:
    lance.write_dataset(ROWS, tmp_path / "base").update_config({"k": "1"})
    for first, change in THEIRS.items():
        outcomes, states = [], []
        for side, opened in (("lance", theirs), ("ours", spark_lance.dataset)):
            path = tmp_path / f"{first}-{side}"
            shutil.copytree(tmp_path / "base", path)
            stale = opened(path)
            change(theirs(path))
            outcomes.append(outcome(lambda: PAIRED[second](stale)))  # noqa: B023
            states.append(state(path))
        assert outcomes[0] == outcomes[1], first
        assert states[0] == states[1], first


def test_pylance_sees_our_updates_as_conflicts(tmp_path: Path) -> None:
    names = ["set k", "delete k", "metadata k", "schema k", "field a", "field x"]
    lance.write_dataset(ROWS, tmp_path / "base").update_config({"k": "1"})
    for first, second in itertools.product(names, names):
        outcomes = []
        for side, opened in (("lance", theirs), ("ours", spark_lance.dataset)):
            path = tmp_path / f"{first}-{second}-{side}"
            shutil.copytree(tmp_path / "base", path)
            stale = theirs(path)
            PAIRED[first](opened(path))
            outcomes.append(outcome(lambda: PAIRED[second](stale)))  # noqa: B023
        assert outcomes[0] == outcomes[1], (first, second)


def test_fields_that_do_not_exist(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(ROWS, tmp_path / "t")
    for path in ("b", "s.y", "a.x"):
        with pytest.raises(SchemaError):
            dataset.update_field_metadata({path: {"k": "1"}})
    message = transaction_pb2.Transaction.UpdateConfig()
    message.field_metadata_updates[7].replace = True
    with pytest.raises(SchemaError, match="7"):
        commit_operation(dataset.table, message, read_version=1)
    assert dataset.latest_version == 1


def test_key_metadata_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={KEY: "true"})])
    lance.write_dataset(pa.table({"a": [1]}, schema=schema), path)
    dataset = spark_lance.dataset(path)
    for updates, replace in (({KEY: None}, False), ({KEY: "true"}, False), ({"k": "1"}, True)):
        with pytest.raises(SchemaError, match="key"):
            dataset.update_field_metadata({"a": updates}, replace=replace)
    dataset.update_field_metadata({"a": {"k": "1"}})
    assert theirs(path).schema.field("a").metadata == {KEY.encode(): b"true", b"k": b"1"}


def test_the_older_form_is_refused(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(ROWS, tmp_path / "t")
    message = transaction_pb2.Transaction.UpdateConfig(upsert_values={"k": "1"})
    with pytest.raises(UnsupportedFormatError, match="older form"):
        commit_operation(dataset.table, message, read_version=1)
