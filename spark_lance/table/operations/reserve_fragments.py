"""ReserveFragments: reserve fragment ids for a writer that needs them before it commits its files.

Only the counter changes. The reserved ids are (counter - n, counter], with the counter of the new version. Id
0 cannot be reserved, because in a transaction it requests the next id. (Lance table format, fragments.)
"""

from __future__ import annotations

from spark_lance.errors import FormatError
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import (
    MAX_FRAGMENT_ID,
    CommitContext,
    finish_version,
    keep_marks,
    start_version,
)


def reserve_fragments(
    base: Manifest, operation: transaction_pb2.Transaction.ReserveFragments, context: CommitContext
) -> Manifest:
    """Return the version after `base` with `num_fragments` reserved ids.

    Raises:
        FormatError: not enough ids are left.
    """
    message = start_version(base, context)
    keep_marks(message)
    # If a table never had a fragment, the counter is missing and counts as 0.
    highest = message.max_fragment_id + operation.num_fragments
    if highest > MAX_FRAGMENT_ID:
        raise FormatError(f"the table has used up its fragment ids: {highest} does not fit 32 bits")
    message.max_fragment_id = highest
    return finish_version(message, base.index_section, base.naming, context)
