"""Changing rows."""

from __future__ import annotations

import pyarrow.compute as pc

from spark_lance.table.delete import delete_rows
from spark_lance.table.faces.base import Face, SameFace

__all__ = ["Changing"]


class Changing(Face):
    """Changes of rows; each makes a new version."""

    def delete(self: SameFace, predicate: pc.Expression) -> SameFace:
        """Delete the rows for which an expression over the columns is true; return the version without them.

        Rows are looked for in this version. If another writer changed the same rows meanwhile, or moved them,
        they are looked for again in the newest version. A version is made even if no row matches.

        Raises:
            ExpressionError: the expression does not fit the columns.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        return self._at(delete_rows(self.store, self.root, self.manifest, predicate))
