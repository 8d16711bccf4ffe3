"""The numbers of a version in the result of `versions()`."""

from __future__ import annotations

from spark_lance.proto import table_pb2

__all__ = ["version_summary"]


def version_summary(manifest: table_pb2.Manifest) -> dict[str, str]:
    """Return the counts of a version as texts, by the names that pylance gives them."""
    fragments = manifest.fragments
    files = [file for fragment in fragments for file in fragment.files]
    deletions = [f.deletion_file for f in fragments if f.HasField("deletion_file")]
    stored = sum(fragment.physical_rows for fragment in fragments)
    deleted = sum(deletion.num_deleted_rows for deletion in deletions)
    counts = {
        "total_data_file_rows": stored,
        "total_data_files": len(files),
        "total_deletion_file_rows": deleted,
        "total_deletion_files": len(deletions),
        "total_files_size": sum(file.file_size_bytes for file in files),
        "total_fragments": len(fragments),
        "total_rows": stored - deleted,
    }
    return {name: str(count) for name, count in counts.items()}
