"""Telling how writing goes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_lance.datasets.fragment_metadata import FragmentMetadata
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store

__all__ = [
    "FileSystemFragmentWriteProgress",
    "FragmentWriteProgress",
    "IndexProgress",
    "NoopFragmentWriteProgress",
]


@dataclass(frozen=True)
class IndexProgress:
    """How far the building of an index is."""

    event: str
    stage: str
    completed: int | None = None
    total: int | None = None
    unit: str = ""

    @property
    def fraction(self) -> float | None:
        """The part that is done; None if it is not known."""
        return self.completed / self.total if self.total and self.completed is not None else None


class FragmentWriteProgress(ABC):
    """Receives each fragment when its writing begins and when it is complete."""

    def _do_begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        self.begin(fragment, **kwargs)

    @abstractmethod
    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Take notice of a fragment whose writing begins."""

    def _do_complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        self.complete(fragment, **kwargs)

    @abstractmethod
    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Take notice of a fragment that is written."""


class NoopFragmentWriteProgress(FragmentWriteProgress):
    """Does nothing."""

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""


class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Keeps `fragment_{id}.in_progress` while a fragment is written, and `fragment_{id}.json` of it."""

    PROGRESS_EXT: ClassVar[str] = ".in_progress"

    def __init__(self, base_uri: str, metadata: Mapping[str, str] | None = None) -> None:
        self._store: Store
        self._store, self._root = open_store(base_uri)
        self._metadata = dict(metadata or {})

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write both files."""
        record = {"fragment_id": fragment.id, "metadata": self._metadata}
        self._store.put(self._path(fragment, self.PROGRESS_EXT), json.dumps(record).encode())
        self._store.put(self._path(fragment, ".json"), json.dumps(fragment.to_json()).encode())

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the fragment again and delete the marker of its writing."""
        self._store.put(self._path(fragment, ".json"), json.dumps(fragment.to_json()).encode())
        self._store.delete(self._path(fragment, self.PROGRESS_EXT), self._root)

    def _path(self, fragment: FragmentMetadata, suffix: str) -> str:
        return join(self._root, f"fragment_{fragment.id}{suffix}")
