"""ReserveFragments: fragment ids set aside for a writer that must know them before it commits its files.

Only the counter moves. The reserved ids are those that it passed: (counter - n, counter] of the new version.
Id 0 cannot be reserved, because in a transaction it asks for the next id. (Lance table format, fragments.)
"""

from __future__ import annotations

from spark_lance.errors import FormatError
from spark_lance.proto import transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.next_version import (
    MAX_FRAGMENT_ID,
    Stamp,
    finish_version,
    keep_marks,
    start_version,
)


def reserve_fragments(
    base: Manifest, operation: transaction_pb2.Transaction.ReserveFragments, stamp: Stamp
) -> Manifest:
    """Return the version after `base` with `num_fragments` ids set aside.

    Raises:
        FormatError: fewer ids are left.
    """
    message = start_version(base, stamp)
    keep_marks(message)
    # A table that never had a fragment has no counter, which counts as 0.
    highest = message.max_fragment_id + operation.num_fragments
    if highest > MAX_FRAGMENT_ID:
        raise FormatError(f"the table has used up its fragment ids: {highest} does not fit 32 bits")
    message.max_fragment_id = highest
    return finish_version(message, base.index_section, base.naming, stamp)
