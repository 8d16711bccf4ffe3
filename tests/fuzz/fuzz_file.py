"""A coverage-guided fuzz target: damaged data files are refused by a LanceError or read, and nothing else.

    python -m tests.fuzz.fuzz_file CORPUS [-max_total_time=300] [libFuzzer options]

needs `pip install atheris`. An empty CORPUS folder is filled with small files of all versions and encodings
first (which needs pylance). The first byte of an input picks the path that reads it: mapped or not, all rows
or single ones. What makes the target fail is then in the current directory as crash-*; give that file as the
only argument to see it again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    atheris = None

import numpy as np

# Code is instrumented when it is imported, and only for the fuzzer.
if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["spark_lance.file"]):
        pass

from spark_lance.errors import LanceError
from spark_lance.file.base.pages import RowReader
from spark_lance.file.reader import open_file, read_field, take_field
from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import Store

__all__ = ["main", "try_bytes"]

MAX_ROWS = 1 << 16
_MEMORY: Store = MemoryStore()
_DISK: Store = LocalStore()
_FOLDER = tempfile.mkdtemp(prefix="fuzz")


def make_corpus(folder: Path) -> None:
    """Write the small files of the corruption campaign, each with its first byte, into a folder."""
    from tests.file.test_corruption_campaign import VERSIONS, files

    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as name:
            list(files(Path(name), version))
            for i, file in enumerate(sorted(Path(name).glob("*.lance"))):
                data = file.read_bytes()
                if len(data) < 8192:
                    (folder / file.name).write_bytes(bytes([i % 4]) + data)


def try_bytes(data: bytes) -> None:
    """Read a file; anything but a LanceError or arrays that hold together is raised."""
    if not data:
        return
    way, content = data[0], data[1:]
    store, path = _MEMORY, "/fuzzed"
    if way & 1:
        place = Path(_FOLDER) / "fuzzed"
        place.unlink(missing_ok=True)
        place.write_bytes(content)
        store, path = _DISK, str(place)
    else:
        store.put(path, content)
    try:
        reader = open_file(store, path)
        rows = reader.num_rows
        for field in (field.as_descriptor() for field in reader.schema.fields):
            opened = reader.open_field(field)
            if rows > MAX_ROWS:
                # Constant pages stand for any number of rows in no bytes.
                array = read_field(opened, field, path, rows - 5, rows)
                array.validate()
            elif way & 2 and isinstance(opened, RowReader) and rows:
                take_field(opened, field, path, np.unique([0, rows // 3, rows - 1])).validate()
            else:
                array = read_field(opened, field, path, 0, rows)
                array.validate()
    except LanceError:
        pass


def main() -> None:
    """Run the fuzzer with the arguments of the command line."""
    if atheris is None:
        sys.exit("the fuzz target needs atheris: pip install atheris")
    corpus = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    for folder in corpus:
        if folder.is_dir() and not any(folder.iterdir()):
            make_corpus(folder)
    atheris.Setup(sys.argv, try_bytes)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
