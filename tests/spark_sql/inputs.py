"""SQL inputs of Spark's own test suite: files cut into statements, and the tables that they rest on.

The texts come from the test jar of `org.apache.spark:spark-sql_2.13` (Maven Central) and stay in a cache
folder. A file holds statements that end in ";" and comments, some of which are directives:

    --SET a=b,c=d            settings for the whole file
    --IMPORT other.sql       the statements of another file, in this place
    --QUERY-DELIMITER-START  statements up to --QUERY-DELIMITER-END are separated by these two lines alone
    --CONFIG_DIM...          settings that Spark's suite varies; ignored here
    --ONLY_IF spark          the file is for Spark only
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.tpc.sources import test_jar

__all__ = ["POSTGRES_TABLES", "InputFile", "data_folder", "input_files"]

VERSION = "4.2.0"
_DELIMITERS = re.compile(r"^--QUERY-DELIMITER-(?:START|END)\s*$", re.MULTILINE)
_END = re.compile(r"(?<!\\);")
_NUMBERS = "unique1 unique2 two four ten twenty hundred thousand twothousand fivethous tenthous odd even"
_WIDE = ", ".join(
    [f"{name} INT" for name in _NUMBERS.split()]
    + [f"{s} STRING" for s in ("stringu1", "stringu2", "string4")]
)
# Tables that files of the folder postgreSQL read: name -> (file of test data, schema).
POSTGRES_TABLES: Mapping[str, tuple[str, str]] = {
    "aggtest": ("agg.data", "a INT, b FLOAT"),
    "onek": ("onek.data", _WIDE),
    "tenk1": ("tenk.data", _WIDE),
}


@dataclass(frozen=True)
class InputFile:
    """One file of the suite.

    Attributes:
        name: the path below `inputs`, such as "postgreSQL/join.sql".
        settings: Spark settings that hold for the whole file.
        statements: in order.
    """

    name: str
    settings: Mapping[str, str]
    statements: tuple[str, ...]


@cache
def _folder() -> Path:
    """Return the folder that holds the suite's files, unpacked next to the jar."""
    jar = test_jar(VERSION)
    folder = jar.parent / "unpacked"
    if not folder.exists():
        with zipfile.ZipFile(jar) as archive:
            expected = ("sql-tests/inputs/", "test-data/postgresql/")
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(expected)])
    return folder


def data_folder() -> Path:
    """Return the folder of the rows of `POSTGRES_TABLES`."""
    return _folder() / "test-data" / "postgresql"


def input_files() -> Iterator[InputFile]:
    """Yield every file of the suite, by name."""
    root = _folder() / "sql-tests" / "inputs"
    for path in sorted(root.rglob("*.sql")):
        yield _parse(path, root)


def _parse(path: Path, root: Path) -> InputFile:
    lines = path.read_text().splitlines()
    settings: dict[str, str] = {}
    for line in lines:
        if line.startswith("--SET "):
            pairs = re.findall(r"([\w.]+)\s*=\s*([^,]*)", line.removeprefix("--SET "))
            settings.update({name: value.strip() for name, value in pairs})
    statements: list[str] = []
    for line in lines:
        if line.startswith("--IMPORT "):
            statements += _parse(root / line.removeprefix("--IMPORT ").strip(), root).statements
    text = "\n".join(lines)
    if _DELIMITERS.search(text):
        parts = [part for part in _DELIMITERS.split(text) if _without_comments(part)]
        statements += [_without_comments(part).removesuffix(";") for part in parts]
    else:
        statements += [part for part in _END.split(_without_comments(text)) if part.strip()]
    return InputFile(str(path.relative_to(root)), settings, tuple(part.strip() for part in statements))


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()
