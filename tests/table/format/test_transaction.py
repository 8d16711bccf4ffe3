"""Transactions: where they are found, and what of them survives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction, write_transaction
from spark_lance.table.operations import OPERATIONS
from spark_lance.table.versions.versions import load_latest

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]

ROWS = pa.table({"a": [1, 2, 3]})
# A length-delimited field 900: an operation that came after this release.
FUTURE_OPERATION = b"\xa2\x38\x02\x08\x01"


def test_every_operation_has_a_name_and_a_place_in_the_table() -> None:
    oneof = transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"]
    assert set(OPERATIONS) == {field.name for field in oneof.fields}
    for field in oneof.fields:
        message = transaction_pb2.Transaction()
        operation = getattr(message, field.name)
        assert Transaction.new(operation, 4).name == field.name


def test_properties_and_identity_round_trip() -> None:
    ours = Transaction.new(transaction_pb2.Transaction.Append(), 7, {"k": "v"})
    again = Transaction.parse(ours.pack())
    assert (again.uuid, again.read_version, dict(again.properties)) == (ours.uuid, 7, {"k": "v"})
    assert again.file_name == f"7-{ours.uuid}.txn"
    assert Transaction.new(transaction_pb2.Transaction.Append(), 7).uuid != ours.uuid


def test_the_file_serves_when_the_inline_copy_is_missing(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path, commit_message="hello")
    forge(path, lambda message: message.ClearField("transaction_section"))
    table = TableRef(*open_store(path))
    transaction = read_transaction(table, load_latest(table))
    assert transaction.name == "overwrite"
    assert dict(transaction.properties) == {"__lance_commit_message": "hello"}


def test_the_older_place_of_the_inline_copy_is_read(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)

    def move(message: table_pb2.Manifest) -> None:
        message.transaction_section_deprecated = message.transaction_section
        message.ClearField("transaction_section")
        message.transaction_file = ""

    forge(path, move)
    table = TableRef(*open_store(path))
    assert read_transaction(table, load_latest(table)).name == "overwrite"


def test_no_transaction_at_all(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    forge(path, lambda message: message.ClearField("transaction_section"))
    for file in (path / "_transactions").iterdir():
        file.unlink()
    table = TableRef(*open_store(path))
    with pytest.raises(FormatError, match=r"file is gone.*\.txn"):
        read_transaction(table, load_latest(table))
    forge(path, lambda message: message.ClearField("transaction_file"))
    with pytest.raises(FormatError, match="version 1 has no transaction"):
        read_transaction(table, load_latest(table))


def test_a_damaged_file(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    forge(path, lambda message: message.ClearField("transaction_section"))
    for file in (path / "_transactions").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    table = TableRef(*open_store(path))
    with pytest.raises(FormatError, match=r"undecodable transaction.*\.txn"):
        read_transaction(table, load_latest(table))


def test_an_operation_from_the_future_has_no_name(tmp_path: Path, forge: Forge) -> None:
    table = TableRef(*open_store(tmp_path))
    future = transaction_pb2.Transaction(read_version=1, uuid="f").SerializeToString() + FUTURE_OPERATION
    transaction = Transaction.parse(future)
    assert transaction.name is None
    assert transaction.pack() == future
    with pytest.raises(FormatError):
        _ = transaction.operation
    write_transaction(table, transaction)
    assert (tmp_path / "_transactions" / "1-f.txn").read_bytes() == future
