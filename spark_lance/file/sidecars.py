"""Sidecar files: bytes of blobs that are stored next to a data file instead of in it.

Sidecar number 1, 2, ... of data file data/NAME.lance is data/NAME/BITS.blob, BITS = the 32 bits of the number
as digits, lowest first: number 2 is 01000000000000000000000000000000.blob. (Lance file format 2.2, blobs.)
"""

from __future__ import annotations

import logging

from spark_lance.io.store import OutputFile, Store, join

logger = logging.getLogger(__name__)

_SUFFIX = ".lance"


def sidecar_folder(data_file: str) -> str:
    """Return the directory of the sidecars of a data file."""
    return data_file.removesuffix(_SUFFIX)


def sidecar_path(data_file: str, number: int) -> str:
    """Return the path of a sidecar."""
    return join(sidecar_folder(data_file), f"{number:032b}"[::-1] + ".blob")


class Sidecar:
    """A sidecar that is being written."""

    def __init__(self, number: int, path: str, out: OutputFile) -> None:
        self.number = number
        self.path = path
        self.out = out

    def append(self, data: object) -> int:
        """Write bytes and return where they begin."""
        position = self.out.tell()
        self.out.write(data)
        return position


class Sidecars:
    """All sidecars of one data file that is being written. They become visible one by one when finished."""

    def __init__(self, store: Store, data_file: str) -> None:
        self._store = store
        self._data_file = data_file
        self._last = 0
        self._open: list[Sidecar] = []
        self._finished: list[str] = []

    def create(self) -> Sidecar:
        """Begin the next sidecar."""
        self._last += 1
        path = sidecar_path(self._data_file, self._last)
        sidecar = Sidecar(self._last, path, self._store.create(path))
        self._open.append(sidecar)
        return sidecar

    def finish(self, sidecar: Sidecar) -> None:
        """Make a sidecar visible."""
        sidecar.out.close()
        self._open.remove(sidecar)
        self._finished.append(sidecar.path)

    def finish_all(self) -> None:
        """Make those visible that are not yet."""
        for sidecar in list(self._open):
            self.finish(sidecar)

    def abort(self) -> None:
        """Drop all of them, also those that are visible; what cannot be deleted is logged and left."""
        for sidecar in self._open:
            sidecar.out.abort()
        self._open.clear()
        for path in self._finished:
            try:
                self._store.delete(path, self._data_file.rpartition("/")[0])
            except OSError as error:
                logger.warning("could not delete the uncommitted file %s: %s", path, error)
        self._finished.clear()
