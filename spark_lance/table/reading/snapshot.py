"""A version of a table as a value: its content, and the scan of its rows.

All readers of rows use `Snapshot.scan`. It is the only place that attaches pruners, so a delete, a merge or
the filter of a search skips the same fragments as a read. The table layer does not depend on the index layer:
the code that opens the table passes a factory of pruners to the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.pruning import Pruner
from spark_lance.table.reading.scan import Scan
from spark_lance.table.versions.resolve import main_line
from spark_lance.table.versions.versions import load_version


@dataclass(frozen=True)
class Snapshot(TableRefMixin):
    """One version of a table. Can be pickled; nothing here changes the table.

    Attributes:
        table: the table.
        manifest: the version.
        pruner_factory: makes the pruners of the version's indexes, see `reading.pruning`. None uses only row
            numbers and page statistics for pruning. Must be a module-level function, so that it can be
            pickled.
    """

    table: TableRef
    manifest: Manifest
    pruner_factory: PrunerFactory | None = None

    def __getstate__(self) -> dict[str, object]:
        # Computed values are not pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def version(self) -> int:
        """The version number, counted from 1."""
        return self.manifest.version

    @property
    def schema(self) -> Schema:
        """The columns with their field ids.

        Raises:
            FormatError: the manifest's list of fields is not a valid tree.
        """
        return self.manifest.schema

    @property
    def fragments(self) -> Sequence[table_pb2.DataFragment]:
        """The fragments in scan order."""
        return self.manifest.fragments

    @property
    def main_line(self) -> TableRef:
        """The root path of the main line, which holds tags and branches."""
        return main_line(self.table, self.manifest)

    @cached_property
    def bases(self) -> Bases:
        """The base paths of the version."""
        return Bases.of(self.table, self.manifest.message)

    @cached_property
    def _pruners(self) -> tuple[Pruner, ...]:
        # Cached, so that a snapshot opens each index once.
        return () if self.pruner_factory is None else self.pruner_factory(self)

    def at(self, manifest: Manifest) -> Snapshot:
        """Return another version of the same table."""
        return replace(self, manifest=manifest)

    def ref(self) -> SnapshotRef:
        """Return a reference to this version for tasks, because a manifest is too large to send."""
        return SnapshotRef(self.table, self.version, self.pruner_factory)

    def physical_rows(self, fragment: table_pb2.DataFragment) -> int:
        """Return the number of rows of a fragment, deleted rows included.

        Reads it from a data file if the manifest does not have it.

        Raises:
            FormatError: neither the manifest nor a data file has the number.
        """
        return physical_rows(self.table, fragment, self.bases)

    def deletions(self, fragment: table_pb2.DataFragment) -> npt.NDArray[np.uint32]:
        """Return the physical rows of a fragment that are deleted, ascending.

        Raises:
            FormatError: the deletion file is damaged or missing.
        """
        return read_deletions(self.table, fragment, self.physical_rows(fragment), self.bases)

    def live_rows(self, fragment: table_pb2.DataFragment | None = None) -> int:
        """Return the number of live rows of a fragment, or of the version; usually from the manifest only.

        Raises:
            FormatError: neither the manifest nor a data file has the number.
        """
        messages = self.fragments if fragment is None else [fragment]
        return sum(self.physical_rows(each) - int(each.deletion_file.num_deleted_rows) for each in messages)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Sequence[table_pb2.DataFragment] | None = None,
    ) -> Scan:
        """Return a scan of columns of the version.

        Args:
            columns: names of top-level and system columns, in the order of the result; all stored columns by
                default.
            with_row_id: add the column `_rowid`.
            with_row_address: add the column `_rowaddr`.
            fragments: the fragments to read, in scan order; all by default.

        Raises:
            SchemaError: a column does not exist or is named twice.
        """
        return Scan.plan(
            self.table,
            self.manifest,
            columns,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            fragments=fragments,
            pruners=self._pruners,
        )


PrunerFactory: TypeAlias = Callable[[Snapshot], tuple[Pruner, ...]]


@dataclass(frozen=True)
class SnapshotRef(TableRefMixin):
    """A reference to a version of a table by its number, small enough to send to tasks.

    Attributes:
        table: the table.
        version: the version number.
        pruner_factory: see `Snapshot`.
    """

    table: TableRef
    version: int
    pruner_factory: PrunerFactory | None = None

    def load(self) -> Snapshot:
        """Read the manifest and return the snapshot.

        Raises:
            VersionNotFoundError: the version does not exist, or no longer exists.
            FormatError, UnsupportedFormatError: the manifest is damaged or needs an unsupported feature.
        """
        manifest = load_version(self.table, self.version)
        return Snapshot(self.table, manifest, self.pruner_factory)
