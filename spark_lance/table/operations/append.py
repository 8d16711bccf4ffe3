"""Append: add new fragments after the existing ones.

The schema does not change. The new files may have a subset of its columns. Indexes do not change: they do not
cover the new rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.features import FragmentFacts
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    number_fragments,
    start_version,
)


def append_message(fragments: Iterable[table_pb2.DataFragment]) -> transaction_pb2.Transaction.Append:
    """Return the operation that adds fragments with id 0."""
    return transaction_pb2.Transaction.Append(fragments=fragments)


def append(base: Manifest, operation: transaction_pb2.Transaction.Append, context: CommitContext) -> Manifest:
    """Return the version after `base` with the operation's fragments added.

    Raises:
        FormatError: fragment ids collide or run out.
    """
    message = start_version(base, context)
    count = len(message.fragments)
    number_fragments(message, operation.fragments, base.facts.highest)
    facts = base.facts.and_then(FragmentFacts.of(message.fragments[count:]))
    return finish_version(message, base.index_section, base.naming, context, facts)
