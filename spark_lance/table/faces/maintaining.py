"""Keeping a table small and fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_lance.table.compact import CompactionMetrics, compact_table
from spark_lance.table.compact_plan import read_options
from spark_lance.table.faces.base import Face, SameFace
from spark_lance.table.indices import IndexDescription, describe_indices, drop_index, list_indices

__all__ = ["Maintaining", "Optimizer"]


@dataclass(frozen=True)
class Optimizer:
    """What `LanceDataset.optimize` offers."""

    dataset: Face

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments, and those with many deleted rows, to few larger ones.

        Rows keep their order inside what is rewritten, their ids (where these are stable) and their versions.
        Neighbours are put together; a small fragment between two large ones stays. The rows of this version
        are rewritten; where another writer changes them meanwhile, it is done again with the newest version.
        The new version is not this one: open it with `checkout_version(latest_version)`.

        Indices of a table without stable row ids no longer cover what was rewritten, unless
        `defer_index_remap` is set. With stable row ids most kinds cover it as before; a BTree, a zone map and
        a Bloom filter do not.

        Args:
            options: `target_rows_per_fragment` (1048576), `max_bytes_per_file` (90 GiB),
                `materialize_deletions` (True) and `materialize_deletions_threshold` (0.1),
                `defer_index_remap` (False), `num_threads` (1), `batch_size`, `max_source_fragments`,
                `max_source_rows`, `max_source_bytes`, `excluded_fragment_ids`, `data_storage_version` ("2.0",
                "2.1" or "2.2"; by default the table's). See `CompactionOptions`. Defaults can be put in the
                table's config under `lance.compaction.` and the option's name.

        Raises:
            OptionError: an option does not exist or its value cannot be used.
            RetryableConflictError: other writers were in the way each time.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table uses what is not rewritten here.
        """
        chosen = read_options(self.dataset.manifest.config, options)
        return compact_table(self.dataset.store, self.dataset.root, self.dataset.manifest, chosen)


class Maintaining(Face):
    """Indices, compaction and clean-up."""

    @property
    def optimize(self) -> Optimizer:
        """Compaction."""
        return Optimizer(self)

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Compact the table: `optimize.compact_files` by another name."""
        return self.optimize.compact_files(**options)

    def describe_indices(self) -> list[IndexDescription]:
        """Return the indices of this version, by name, each with its segments.

        Raises:
            FormatError: index entries are damaged.
        """
        return describe_indices(self.store, self.root, self.manifest)

    def list_indices(self) -> list[dict[str, Any]]:
        """Return one dict per index segment: name, type, uuid, fields, version, fragment_ids, base_id.

        Raises:
            FormatError: index entries are damaged.
        """
        return list_indices(self.store, self.root, self.manifest)

    def drop_index(self: SameFace, name: str) -> SameFace:
        """Take an index out of the table and return the version without it; older versions keep it.

        Raises:
            IndexNotFoundError: there is no index of this name.
            CommitError: another writer was in the way; see its subclasses.
        """
        return self._at(drop_index(self.store, self.root, self.manifest, name))
