"""A store around another one, for tests that count requests or let them fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest

from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import OutputFile, Store
from spark_lance.io.stored_object import StoredObject

if TYPE_CHECKING:
    import fsspec

__all__ = ["WrappedStore", "replace_request"]

Wrapped = TypeVar("Wrapped", bound="WrappedStore")


@dataclass(frozen=True)
class WrappedStore(Store):
    """A store that passes every request on. Subclasses override the requests that they are about."""

    inner: Store = field(kw_only=True)

    @classmethod
    def around(cls: type[Wrapped], inner: Store, **more: Any) -> Wrapped:
        """Return this store around another one, with its settings or other ones."""
        names = {each.name for each in fields(Store)}
        inner = replace(inner, **{name: value for name, value in more.items() if name in names})
        return cls(**{name: getattr(inner, name) for name in names} | more, inner=inner)

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return self.inner.fs

    @property
    def is_local(self) -> bool:
        return self.inner.is_local

    @property
    def can_create(self) -> bool:
        return self.inner.can_create

    @property
    def lists_tags(self) -> bool:
        return self.inner.lists_tags

    def strip(self, uri: str) -> str:
        return self.inner.strip(uri)

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def map(self, path: str) -> pa.Buffer | None:
        return self.inner.map(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return self.inner.read_ranges(path, ranges)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def look_up(self, path: str) -> StoredObject:
        return self.inner.look_up(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list(self, directory: str) -> list[str]:
        return self.inner.list(directory)

    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        return self.inner.list_objects(directory, recursive)

    def list_directories(self, directory: str) -> Sequence[str]:
        return self.inner.list_directories(directory)

    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        return self.inner.first_entries(directory, limit)

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        return self.inner.first_objects(directory, limit)

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        return self.inner.first_listed(directory, limit)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)

    def put_hint(self, path: str, data: bytes) -> None:
        self.inner.put_hint(path, data)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.inner.put_if_absent(path, data, sync=sync)

    def copy(self, source: str, target: str) -> None:
        self.inner.copy(source, target)

    def list_to_delete(self, directory: str, root: str, recursive: bool = False) -> Sequence[StoredObject]:
        return self.inner.list_to_delete(directory, root, recursive)

    def delete(self, path: str, root: str) -> None:
        self.inner.delete(path, root)

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        self.inner.delete_many(paths, root)

    def remove_empty(self, directory: str, root: str) -> None:
        self.inner.remove_empty(directory, root)

    def create(self, path: str) -> OutputFile:
        return self.inner.create(path)


def replace_request(patch: pytest.MonkeyPatch, name: str, around: Callable[[Any], Any]) -> None:
    """Replace a method of stores on this machine and in memory by what a function makes of it."""
    for kind in (LocalStore, MemoryStore):
        patch.setattr(kind, name, around(getattr(kind, name)))
