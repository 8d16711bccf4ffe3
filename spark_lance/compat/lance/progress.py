"""Progress reports of writes and index builds."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_lance.datasets.fragment_metadata import FragmentMetadata
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2

__all__ = [
    "FileSystemFragmentWriteProgress",
    "FragmentWriteProgress",
    "IndexProgress",
    "NoopFragmentWriteProgress",
]


@dataclass(frozen=True)
class IndexProgress:
    """The progress of an index build."""

    event: str
    stage: str
    completed: int | None = None
    total: int | None = None
    unit: str = ""

    @property
    def fraction(self) -> float | None:
        """The completed fraction; None if it is unknown."""
        return self.completed / self.total if self.total and self.completed is not None else None


class FragmentWriteProgress(ABC):
    """Is called for each fragment when its write starts and when its write is complete."""

    def _do_begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        self.begin(fragment, **kwargs)

    @abstractmethod
    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Handle the start of the write of a fragment."""

    def _do_complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        self.complete(fragment, **kwargs)

    @abstractmethod
    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Handle the end of the write of a fragment."""


def listener(
    progress: FragmentWriteProgress | None, fragment_id: int = 0
) -> Callable[[bytes, bool], None] | None:
    """Return a function for `reporting_fragments` that calls the hooks of `progress`.

    Args:
        progress: the hooks; None for no hooks.
        fragment_id: the id of the fragments in the calls.
    """
    if progress is None:
        return None

    def call(message: bytes, complete: bool) -> None:
        fragment = FragmentMetadata.of(table_pb2.DataFragment.FromString(message))
        fragment.id = fragment_id
        (progress._do_complete if complete else progress._do_begin)(fragment)

    return call


class NoopFragmentWriteProgress(FragmentWriteProgress):
    """Does nothing."""

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""


class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Writes `fragment_{id}.json` per fragment, and a marker `fragment_{id}.in_progress` during its write."""

    PROGRESS_EXT: ClassVar[str] = ".in_progress"

    def __init__(self, base_uri: str, metadata: Mapping[str, str] | None = None) -> None:
        self._store: Store
        self._store, self._root = open_store(base_uri)
        self._metadata = dict(metadata or {})

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the marker and the JSON file."""
        record = {"fragment_id": fragment.id, "metadata": self._metadata}
        self._store.put(self._path(fragment, self.PROGRESS_EXT), json.dumps(record).encode())
        self._store.put(self._path(fragment, ".json"), json.dumps(fragment.to_json()).encode())

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the JSON file again and delete the marker."""
        self._store.put(self._path(fragment, ".json"), json.dumps(fragment.to_json()).encode())
        self._store.delete(self._path(fragment, self.PROGRESS_EXT), self._root)

    def _path(self, fragment: FragmentMetadata, suffix: str) -> str:
        return join(self._root, f"fragment_{fragment.id}{suffix}")
