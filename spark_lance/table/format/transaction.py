"""Transactions: the changes of one commit, stored in the manifest file and as `_transactions/{name}.txn`.

The `.txn` file is the serialized Transaction message and equals the inline copy. Both are written, because
old readers do not know the current position of the inline copy. If an operation was added to the format after
this release, the transaction decodes without an operation.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from spark_lance.errors import FormatError
from spark_lance.io.stored_names import check_message
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest, read_inline_transaction
from spark_lance.table.format.paths import TRANSACTIONS_DIR, transaction_name
from spark_lance.table.format.table_ref import TableRef

# Operation message type -> its name in the transaction.
_OPERATION_NAMES = {
    field.message_type.name: field.name
    for field in transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields
    if field.message_type is not None
}


@dataclass(frozen=True, eq=False, repr=False)
class Transaction:
    """One commit: the version it was computed from, its identity and its operation.

    `message` is never changed after construction.
    """

    message: transaction_pb2.Transaction

    def __repr__(self) -> str:
        name = self.name or "unknown operation"
        return f"Transaction({name}, read_version={self.read_version}, uuid={self.uuid!r})"

    @classmethod
    def new(
        cls, operation: Message, read_version: int, properties: Mapping[str, str] | None = None
    ) -> Transaction:
        """Return a transaction with a new uuid for an operation (`transaction_pb2.Transaction.Append`, ...).

        Raises:
            FormatError: the operation names a file that no reader would accept.
        """
        message = transaction_pb2.Transaction(
            read_version=read_version,
            uuid=str(uuids.uuid4()),
            transaction_properties=dict(properties or {}),
        )
        getattr(message, _OPERATION_NAMES[operation.DESCRIPTOR.name]).CopyFrom(operation)
        check_message(message)
        return cls(message)

    def rebased(self, operation: Message, read_version: int) -> Transaction:
        """Return a transaction with the same uuid, and the operation rebased onto a newer version."""
        message = transaction_pb2.Transaction()
        message.CopyFrom(self.message)
        message.read_version = read_version
        getattr(message, _OPERATION_NAMES[operation.DESCRIPTOR.name]).CopyFrom(operation)
        return Transaction(message)

    @classmethod
    def parse(cls, data: bytes) -> Transaction:
        """Decode a serialized transaction.

        Raises:
            FormatError: the bytes are not a Transaction message, or it names a file outside the table.
        """
        try:
            message = transaction_pb2.Transaction.FromString(data)
        except DecodeError as error:
            raise FormatError(f"undecodable transaction: {error}") from error
        check_message(message)
        return cls(message)

    def pack(self) -> bytes:
        """Return the serialized transaction."""
        return self.message.SerializeToString()

    @property
    def read_version(self) -> int:
        """The version that the operation was computed from; 0 for the creation of a table."""
        return self.message.read_version

    @property
    def uuid(self) -> str:
        """The identity of the commit; the same in every attempt."""
        return self.message.uuid

    @property
    def properties(self) -> Mapping[str, str]:
        """User-defined key-value pairs; `__lance_commit_message` is the commit message."""
        return self.message.transaction_properties

    @property
    def name(self) -> str | None:
        """The operation's name ("append", "create_index", ...), None if this release does not know it."""
        name: str | None = self.message.WhichOneof("operation")
        return name

    @property
    def operation(self) -> Message:
        """The operation's message.

        Raises:
            FormatError: the operation is not known.
        """
        if self.name is None:
            raise FormatError("the transaction's operation is not known to this release")
        operation: Message = getattr(self.message, self.name)
        return operation

    @property
    def file_name(self) -> str:
        """The name of the transaction's file."""
        return transaction_name(self.read_version, self.uuid)


def read_transaction(table: TableRef, manifest: Manifest) -> Transaction:
    """Return the transaction that made a version: the inline copy if its operation is known, else the file.

    Raises:
        FormatError: neither can be read; the message has the reason.
    """
    inline: Transaction | None = None
    reason = "there is no inline copy"
    try:
        data = read_inline_transaction(table.store, manifest)
        inline = None if data is None else Transaction.parse(data)
    except FormatError as error:
        reason = error.message
    if inline is not None and inline.name is not None:
        return inline
    try:
        return _read_file(table, manifest)
    except FormatError as error:
        if inline is not None:
            return inline
        problem = f"version {manifest.version} has no transaction: {reason}, and {error.message}"
        raise FormatError(problem, path=error.path) from error


def _read_file(table: TableRef, manifest: Manifest) -> Transaction:
    if not manifest.transaction_file:
        raise FormatError("it names no file", path=manifest.path)
    path = table.path(TRANSACTIONS_DIR, manifest.transaction_file)
    try:
        return Transaction.parse(table.store.read(path))
    except FileNotFoundError:
        raise FormatError("its file is gone", path=path) from None
    except FormatError as error:
        raise error.at(path=path) from error


def write_transaction(table: TableRef, transaction: Transaction) -> None:
    """Write the transaction's file. Readers ignore it until a manifest names it."""
    table.store.put(table.path(TRANSACTIONS_DIR, transaction.file_name), transaction.pack())


def delete_transaction(table: TableRef, transaction: Transaction) -> None:
    """Delete the file of a transaction that no manifest names now or later."""
    table.store.delete(table.path(TRANSACTIONS_DIR, transaction.file_name), table.root)
