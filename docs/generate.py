"""Writes the tables of these pages that the code knows: options, types, errors, commands and the like.

    python docs/generate.py           rewrites what stands between the marks of each page
    python docs/generate.py --check   says which pages are not current, and fails

A page holds `<!-- generated: NAME -->` and `<!-- end -->`; `TABLES` has a function for each name.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import RESULTS, Record, read_results  # noqa: E402
from spark_lance import errors  # noqa: E402
from spark_lance.cli.commands import COMMANDS, COMMON, Command  # noqa: E402
from spark_lance.cli.inspect_commands import ENGINES  # noqa: E402
from spark_lance.cli.main import command_line  # noqa: E402
from spark_lance.spark.options.options import option_table  # noqa: E402
from spark_lance.spark.schema.types import type_table  # noqa: E402
from spark_lance.spark.sql.procedures import PROCEDURES  # noqa: E402
from spark_lance.table.format.features import feature_names  # noqa: E402
from spark_lance.table.metadata import METADATA_TABLES  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MARKS = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield row(names)
    yield "|" + "---|" * len(names)
    yield from (row(cells) for cells in rows)


def row(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def options() -> Iterator[str]:
    """Yield the options of Spark's reader and writer by group; each has an anchor of its name."""
    for group, entries in option_table().items():
        yield f"## {group}"
        yield ""
        rows = (
            (f'<a id="option-{re.sub("[<>]", "", name)}"></a>`{name}`', default, doc)
            for name, default, doc in entries
        )
        yield from markdown(("option", "default", "effect"), rows)
        yield ""


def types() -> Iterator[str]:
    """Yield the types of Arrow and Spark."""
    return markdown(("Lance (Arrow)", "Spark", "in new tables", "note"), type_table())


def error_tree() -> Iterator[str]:
    """Yield the errors, each with cause, remedy and whether to repeat the call."""
    return markdown(
        ("error", "cause", "what to do", "repeat the call", "also is a"),
        (_error(getattr(errors, name)) for name in sorted(errors.__all__)),
    )


_REPEAT = {True: "yes", False: "no", None: "look at the table first"}


def _error(kind: type[errors.LanceError]) -> tuple[str, ...]:
    """Return what is to be said of an error; its docstring begins with `cause: remedy.`."""
    sentence = inspect.getdoc(kind) or ""
    cause, _, remedy = " ".join(sentence.split("\n\n")[0].split()).rstrip(".").partition(": ")
    ours = [base.__name__ for base in kind.__bases__ if issubclass(base, errors.LanceError)]
    others = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]
    plain = [name for name in others if name not in ("object", "BaseException", "Exception")]
    parents = [name for name in ours if not name.startswith("_") and name != "LanceError"]
    return (
        f"`{kind.__name__}`",
        cause,
        remedy,
        _REPEAT[kind.repeatable],
        ", ".join(f"`{name}`" for name in dict.fromkeys([*parents, *plain])),
    )


def commands() -> Iterator[str]:
    """Yield the commands of the program, with their options."""
    program = command_line()
    yield "All commands that open a table take:"
    yield ""
    yield from markdown(("option", "what it does"), filter(None, map(_option, COMMON)))
    yield ""
    for section, group in COMMANDS.items():
        yield f"## {section}"
        for name, each in group.items():
            click_command = program.commands[name]
            if isinstance(each, Command):
                yield from _command(name, each, click_command)
            else:
                assert isinstance(click_command, click.Group)
                for part, command in each.commands.items():
                    yield from _command(f"{name} {part}", command, click_command.commands[part])


def _command(name: str, entry: Command, command: click.Command) -> Iterator[str]:
    arguments = [p.make_metavar(_CONTEXT) for p in command.params if isinstance(p, click.Argument)]
    yield ""
    yield f"### `{name}`"
    yield ""
    yield entry.help
    yield ""
    yield "```"
    yield " ".join(["spark-lance", name, *arguments, "[OPTIONS]"])
    yield f"spark-lance {entry.example}"
    yield "```"
    yield ""
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden and p not in COMMON]
    if options:
        yield from markdown(("option", "what it does"), filter(None, map(_option, options)))
        yield ""


_CONTEXT = click.Context(click.Command("spark-lance"))


def _option(option: click.Option) -> tuple[str, str] | None:
    record = option.get_help_record(_CONTEXT)
    return None if record is None else (f"`{record[0]}`", record[1])


def procedures() -> Iterator[str]:
    """Yield the SQL procedures with their parameters and the columns of their results."""
    for name, procedure in sorted(PROCEDURES.items()):
        yield f"### `{name}`"
        yield ""
        yield procedure.doc
        yield ""
        rows = [
            (f"`{one.name}`", f"`{one.type}`", f"`{one.default}`" if one.default else "", one.comment)
            for one in procedure.parameters
        ]
        if rows:
            yield from markdown(("parameter", "type", "default", "meaning"), rows)
            yield ""
        results = [f"`{result}`" for result in procedure.results if result != "done"]
        if results:
            yield f"Returns {', or '.join(results)}."
            yield ""


def metadata_tables() -> Iterator[str]:
    """Yield the metadata tables with their columns; tables with the same columns have one section."""
    by_columns: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for name, table in METADATA_TABLES.items():
        rows = tuple((f"`{column.name}`", f"`{column.type}`", column.about) for column in table.columns)
        by_columns.setdefault(rows, []).append(name)
    for rows, (name, *others) in by_columns.items():
        yield f"## `{name}`"
        yield ""
        if others:
            yield f"The same columns: {', '.join(f'`{other}`' for other in others)}."
            yield ""
        yield from markdown(("column", "type", "meaning"), [row for row in rows if not _is_constant(row)])
        yield ""
        constants: dict[str, list[str]] = {}
        for column, _, about in filter(_is_constant, rows):
            constants.setdefault(about.removeprefix("always "), []).append(column)
        if constants:
            parts = (f"{value}: {', '.join(names)}" for value, names in constants.items())
            yield f"Always {'; '.join(parts)}."
            yield ""


def _is_constant(row: tuple[str, str, str]) -> bool:
    return row[2] in ("always null", "always 0", "always empty")


def engines() -> Iterator[str]:
    """Yield which engines read and write which versions of files, and which table features."""
    return markdown(
        ("engine", "reads files of version", "writes files of version", "table features it reads", "note"),
        (
            (
                engine.name,
                ", ".join(sorted(engine.read_versions)),
                ", ".join(sorted(engine.written_versions)),
                ", ".join(feature_names(engine.reads)),
                engine.note,
            )
            for engine in ENGINES
        ),
    )


def releases() -> Iterator[str]:
    """Yield the releases that the tests run with: what says so is what they read."""
    project = (ROOT / "pyproject.toml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    pins = (ROOT / "constraints.txt").read_text()
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    older = re.findall(r"^SPARK_VERSIONS \?= (.*)$", makefile, re.MULTILINE)[0].split()
    sparks = sorted({*older, *re.findall(r"^pyspark==([\d.]+)", pins, re.MULTILINE)})
    golden = {path.name.partition("-")[0] for path in (ROOT / "tests" / "golden").iterdir() if path.is_dir()}
    wrote = sorted((name for name in golden if re.fullmatch(r"\d+(\.\d+)+", name)), key=_release)
    beside = re.findall(r"^pylance==([\d.]+)", pins, re.MULTILINE)
    yield from markdown(
        ("", "releases", "what runs with them"),
        (
            (
                "Python",
                ", ".join(pythons),
                "the fast tests with the oldest one, all tests with another",
            ),
            ("Spark", ", ".join(sparks), "the tests of the Spark layer: `make test-spark-versions`"),
            (
                "pylance beside us",
                ", ".join(beside),
                "reads, changes and races on the same tables, in both directions",
            ),
            ("pylance that wrote", ", ".join(wrote), "tables in `tests/golden`, read and changed"),
        ),
    )


def tested() -> Iterator[str]:
    """Yield the runs of the tests that were recorded, by what they ran with."""
    rows = json.loads((ROOT / "tests" / "tested.json").read_text())
    names = ("python", "pyspark", "pyarrow", "pylance", "tests", "passed", "skipped", "date")
    ordered = sorted(rows, key=lambda row: (*(_release(row[name]) for name in names[:4]), row["tests"]))
    heads = ("Python", "Spark", "PyArrow", "pylance", *names[4:])
    yield from markdown(heads, ([str(row[name]) for name in names] for row in ordered))


def figures() -> Iterator[str]:
    """Yield the pictures of what benchmarks have kept: make bench-report draws them."""
    benches = {record.bench for record in _records()} & set(_BENCHES)
    pictures: dict[str, list[str]] = {bench: [] for bench in sorted(benches)}
    for picture in sorted(PICTURES.glob("bench*.svg")):
        # "bench_size_flights" is of bench_size, not of bench.
        matches = [
            bench for bench in _BENCHES if picture.stem == bench or picture.stem.startswith(f"{bench}_")
        ]
        if matches and (longest := max(matches, key=len)) in pictures:
            pictures[longest].append(picture.name)
    for bench, names in pictures.items():
        if names:
            docstring = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{bench}.py").read_text())) or ""
            caption = " ".join(docstring.split("\n\n")[0].split()).rstrip(".")
            yield from ("", f"**{caption}** (`make {bench.replace('_', '-')}`)")
            for name in names:
                yield from ("", f"![{_alone(name, bench, caption)}](pictures/{name})")


_BENCHES = [path.stem for path in (ROOT / "benchmarks").glob("bench*.py")]


def _alone(name: str, bench: str, caption: str) -> str:
    """Return the alternative text of a picture: its table, else the measurement."""
    table = name.removesuffix(".svg").removeprefix(bench).strip("_")
    return (table or caption).replace("[", "(").replace("]", ")")


def peers() -> Iterator[str]:
    """Yield the ratios of the same work by other table formats, a column for each peer."""
    records = [record for record in _records() if record.bench in ("beside_iceberg", "bench_peers")]
    names = sorted({(record.bench, record.peer_name) for record in records})
    works: dict[str, dict[tuple[str, str], Record]] = {}
    for record in records:
        work = record.case if record.metric == "time" else f"{record.case}, {record.metric}"
        works.setdefault(work, {})[record.bench, record.peer_name] = record
    ordered = sorted(works.items(), key=lambda one: -max(record.ratio or 0 for record in one[1].values()))
    heads = ("work", "spark_lance", *(name for _, name in names))
    yield from markdown(heads, ((work, *_ratios(sides, names)) for work, sides in ordered))
    yield ""
    for name in names:
        last = next(record for record in records if (record.bench, record.peer_name) == name)
        versions = ", ".join(f"{package} {version}" for package, version in sorted(last.versions.items()))
        yield f"{name[1]}: {last.machine}; load {last.load:g} per core; {last.date[:10]}; {versions}."
        yield ""


def _ratios(sides: Mapping[tuple[str, str], Record], names: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield our figure, and the ratio of each peer."""
    ours = next(iter(sides.values()))
    yield f"{ours.ours / 1e6:.3g} MB" if ours.unit == "B" else f"{ours.ours:.3g} {ours.unit}"
    yield from (f"{sides[name].ratio:.2g}" if name in sides else "" for name in names)


def large_tables() -> Iterator[str]:
    """Yield what each step takes with large tables, a column for each size, as benchmarks have kept it."""
    records = [record for record in _records() if record.bench == "bench_large"]
    if not records:
        yield "No figures of this release are kept yet: `make bench-large ARGS=--keep` measures them."
        return
    last = max(records, key=lambda record: record.date)
    records = [record for record in records if record.machine == last.machine]
    for kind, caption in _KINDS_OF_LARGE.items():
        yield from _large_tables([record for record in records if f" {kind}: " in record.case], kind, caption)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(last.versions.items()))
    load = max(record.load for record in records)
    when = f"load at most {load:g} per core at the start of a run. {last.date[:10]}"
    yield f"{last.machine}; {when}; {versions}."


def _short(value: float) -> str:
    """Return a number with at least two digits, and none behind the point from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _large_tables(records: Sequence[Record], kind: str, caption: str) -> Iterator[str]:
    """Yield the table of one kind of rows: seconds and memory of each step and size."""
    values = {(record.case, record.metric): record.ours for record in records}
    if not values:
        return
    sizes = sorted({record.case.partition(" ")[0] for record in records}, key=_count)
    yield from (f"**{caption}**", "")
    rows = []
    for step in _STEPS_OF_LARGE:
        cells = [step]
        for size in sizes:
            case = f"{size} {kind}: {step}"
            seconds, memory = values.get((case, "time")), values.get((case, "peak memory"), 0.0)
            if seconds:
                cells += [_short(seconds), f"{memory:.0f}"]
            else:
                cells += ["", ""]
        rows.append(cells)
    heads = [f"{size} rows: {unit}" for size in sizes for unit in ("s", "MB")]
    yield from markdown(("step", *heads), rows)
    yield ""


_KINDS_OF_LARGE = {
    "flat rows": "Ten narrow columns: numbers, dates, times, texts",
    "vectors": "An id and a vector of 768 floats, 3 KB a row",
}
_STEPS_OF_LARGE = ("write", "scan", "sum", "filter", "merge", "delete", "compact", "index", "look-ups")


def _count(number: str) -> int:
    return int(number.replace(",", ""))


def _records() -> list[Record]:
    """Return what benchmarks have kept of the newest release."""
    files = sorted(RESULTS.glob("*.json"), key=lambda path: _release(path.stem))
    return read_results(files[-1]) if files else []


def _release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "options": options,
    "types": types,
    "errors": error_tree,
    "commands": commands,
    "metadata tables": metadata_tables,
    "procedures": procedures,
    "engines": engines,
    "releases": releases,
    "tested": tested,
    "figures": figures,
    "large tables": large_tables,
    "peers": peers,
}


def filled(text: str) -> str:
    """Return a page with its tables as the code has them now."""

    def fill(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match[2]]()).rstrip("\n")
        return f"{match[1]}\n{lines}\n\n{match[3]}"

    return MARKS.sub(fill, text)


def pages() -> list[Path]:
    """Return the pages that have tables of this kind."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if MARKS.search(path.read_text())]


def main() -> int:
    """Write the pages, or check them."""
    stale = [path for path in pages() if filled(path.read_text()) != path.read_text()]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is not current: make docs-generate")
        else:
            path.write_text(filled(path.read_text()))
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
