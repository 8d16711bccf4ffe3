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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import RESULTS, Record, read_results  # noqa: E402
from spark_lance import errors  # noqa: E402
from spark_lance.cli.commands import COMMANDS, COMMON, Command  # noqa: E402
from spark_lance.cli.inspect_commands import ENGINES  # noqa: E402
from spark_lance.cli.main import command_line  # noqa: E402
from spark_lance.spark.options.options import option_table  # noqa: E402
from spark_lance.spark.schema.types import spark_type, type_table  # noqa: E402
from spark_lance.spark.sql.procedure import Parameter, Procedure  # noqa: E402
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


def entry(name: str, text: str) -> str:
    """Return a line of a list: a name, and a text whose first letter is lower case."""
    is_word = text[1:2] in (" ", *ascii_lowercase) and not text.startswith(("Spark ", "Lance "))
    small = text[:1].lower() + text[1:] if is_word else text
    if text.startswith("["):
        small = f"[{text[1:2].lower()}{text[2:]}"
    return f"- {name}: {small}"


def options() -> Iterator[str]:
    """Yield the options of Spark's reader and writer by group."""
    for group, entries in option_table().items():
        yield f"## {group}"
        yield ""
        for name, default, doc in entries:
            has_default = default not in ("", "False")
            yield entry(f"`{name}`", f"{doc} Default: {default}." if has_default else doc)
        yield ""


def types() -> Iterator[str]:
    """Yield the types of Spark and Arrow: those of new tables, and those of existing columns only."""
    rows = type_table()
    yield "## Types of new tables"
    yield ""
    new_rows = (
        (_type(spark), f"{_type(lance)} ({note})" if note else _type(lance))
        for lance, spark, new, note in rows
        if new
    )
    yield from markdown(("Spark", "Lance (Arrow)"), new_rows)
    yield ""
    yield "## Other types"
    yield ""
    other_rows = (
        (_type(lance), f"{_type(spark)} ({note})" if note else _type(spark))
        for lance, spark, new, note in rows
        if not new
    )
    yield from markdown(("Lance (Arrow)", "Spark"), other_rows)


def error_tree() -> Iterator[str]:
    """Yield the errors with their base classes, causes and remedies, and whether to repeat the call."""
    classes = [getattr(errors, name) for name in sorted(errors.__all__)]
    yield from map(_error, classes)
    yield ""
    for repeatable, remedy in _REPEAT.items():
        names = (f"`{each.__name__}`" for each in classes if each.repeatable is repeatable)
        yield f"- {remedy}: {', '.join(names)}."


_REPEAT = {True: "Repeat the call after", None: "Look at the table before you repeat the call after"}


def _error(kind: type[errors.LanceError]) -> str:
    """Return the line of an error; its docstring begins with `cause: remedy.`."""
    sentence = inspect.getdoc(kind) or ""
    cause, _, remedy = " ".join(sentence.split("\n\n")[0].split()).rstrip(".").partition(": ")
    parents = [base for base in kind.__bases__ if base not in (errors.LanceError, Exception)]
    names = ", ".join(f"`{base.__name__}`" for base in parents if not base.__name__.startswith("_"))
    bases = f" ({names})" if names else ""
    if remedy.startswith("the message"):
        return entry(f"`{kind.__name__}`{bases}", f"{cause}.")
    return entry(f"`{kind.__name__}`{bases}", f"{cause}. {remedy[:1].upper()}{remedy[1:]}.")


def commands() -> Iterator[str]:
    """Yield the commands with their options; options that several commands have come first."""
    program = command_line()
    shared = _shared_options(program)
    yield "Every command that opens a table has these options (`--branch` not for `convert`):"
    yield ""
    yield from (_option(option) for option in (*shared[:1], *COMMON))
    yield ""
    yield "The usage of a command shows which of these it has:"
    yield ""
    yield from (_option(option) for option in shared[1:])
    yield ""
    for section, group in COMMANDS.items():
        yield f"## {section}"
        yield ""
        for name, each in group.items():
            yield f"### `{name}`"
            yield ""
            if isinstance(each, Command):
                yield each.help
                yield ""
            click_command = program.commands[name]
            parts = {name: each} if isinstance(each, Command) else each.commands
            inner = (
                click_command.commands if isinstance(click_command, click.Group) else {name: click_command}
            )
            yield from _usages(name, parts, inner, shared)
            own = {
                option: part
                for part, command in inner.items()
                for option in _options(command)
                if option not in shared
            }
            for option, part in own.items():
                yield _option(option, "" if part == name else f"{part} ")
            if own:
                yield ""


def _options(command: click.Command) -> list[click.Option]:
    """Return the options of a command that its page shows."""
    options = (part for part in command.params if isinstance(part, click.Option))
    return [option for option in options if not option.hidden and option not in COMMON]


def _shared_options(program: click.Group) -> list[click.Option]:
    """Return the options of several commands, the most frequent first."""
    commands: list[click.Command] = []
    for command in program.commands.values():
        commands += command.commands.values() if isinstance(command, click.Group) else [command]
    numbers = Counter(option for command in commands for option in _options(command))
    return [option for option, number in numbers.most_common() if number > 1]


def _usages(
    name: str,
    entries: Mapping[str, Command],
    commands: Mapping[str, click.Command],
    shared: Sequence[click.Option],
) -> Iterator[str]:
    """Yield the block with the usage of each command, and an example unless all parts are plain."""
    usages = {}
    for part, command in commands.items():
        words = [p.make_metavar(_CONTEXT) for p in command.params if isinstance(p, click.Argument)]
        words += (
            f"[{next(name for name in option.opts if name[:2] == '--')}]"
            for option in shared[1:]
            if option in command.params
        )
        if any(option not in shared for option in _options(command)):
            words.append("[OPTIONS]")
        usages[part] = " ".join(["spark-lance", *dict.fromkeys((name, part)), *words])
    width = max(map(len, usages.values()))
    yield "```"
    for part, usage in usages.items():
        alone = len(usages) == 1
        yield usage if alone else f"{usage:{width}}  # {entries[part].help.partition('.')[0]}"
        if " -" in entries[part].example:
            yield f"spark-lance {entries[part].example}"
    yield "```"
    yield ""


_CONTEXT = click.Context(click.Command("spark-lance"))


def _option(option: click.Option, part: str = "") -> str:
    """Return the line of an option."""
    record = option.get_help_record(_CONTEXT)
    assert record is not None
    text, _, details = record[1].partition("  [")
    default = next((one for one in details.rstrip("]").split("; ") if one.startswith("default: ")), "")
    default = default.removeprefix("default: ").strip("()")
    usage = record[0].replace(" RANGE", "")
    return entry(f"{part}`{usage}`", f"{text} Default: {default}." if default else text)


def procedures() -> Iterator[str]:
    """Yield the SQL procedures; parameters that several procedures have come first."""
    useful = {name: one for name, one in sorted(PROCEDURES.items()) if not one.doc.startswith(_USELESS)}
    shared = _shared_parameters(useful.values())
    yield "These parameters of several procedures are not repeated:"
    yield ""
    yield from sorted(shared.values())
    yield ""
    first_with: dict[str, str] = {}
    for name, procedure in useful.items():
        yield f"### `{name}`"
        yield ""
        yield procedure.doc
        yield ""
        names = (one.name if one.default is None else f"[{one.name}]" for one in procedure.all_parameters)
        yield f"`{name}({', '.join(names)})`"
        yield ""
        own = [one for one in procedure.parameters if shared.get(one.name) != _parameter(one)]
        yield from (_parameter(one) for one in own if one.comment not in _NO_EFFECT)
        for comment, label in _NO_EFFECT.items():
            if without := [f"`{one.name}`" for one in own if one.comment == comment]:
                yield f"- {label}: {', '.join(without)}."
        results = [
            _results(result, first_with.setdefault(result, name), name)
            for result in procedure.results
            if result != "done"
        ]
        if results:
            yield f"- Returns {', or '.join(results)}."
        if own or results:
            yield ""
    yield "### Procedures without effect"
    yield ""
    by_doc: dict[str, list[str]] = {}
    for name, procedure in sorted(PROCEDURES.items()):
        if name not in useful:
            by_doc.setdefault(procedure.doc, []).append(f"`{name}`")
    yield from (entry(", ".join(names), doc) for doc, names in by_doc.items())


def _shared_parameters(procedures: Iterable[Procedure]) -> dict[str, str]:
    """Return the most frequent line of each parameter that several procedures have with the same meaning."""
    lines = Counter((one.name, _parameter(one)) for each in procedures for one in each.parameters)
    shared: dict[str, str] = {}
    for (name, line), number in lines.most_common():
        if number > 1 and name != "table" and not line.endswith(tuple(_NO_EFFECT)):
            shared.setdefault(name, line)
    return shared


_USELESS = ("Do nothing", "Not supported", "Check the name")
# Comments of parameters -> the label of such parameters.
_NO_EFFECT = {"does nothing": "No effect", "not supported": "Not supported"}


def _results(columns: str, first: str, procedure: str) -> str:
    """Return the columns of a result, or a link to the first place with these columns."""
    for name, table in METADATA_TABLES.items():
        if ", ".join(table.schema.names) == columns:
            return f"the columns of the metadata table [`{name}`](metadata.md#{name})"
    if first != procedure and columns.count(",") > 1:
        return f"the columns of [`{first}`](#{first})"
    return f"`{columns}`"


def _parameter(parameter: Parameter) -> str:
    """Return the line of a parameter."""
    has_default = parameter.default not in (None, "NULL", "false")
    default = f", default `{parameter.default}`" if has_default else ""
    kind = "" if parameter.type == "string" else f" {_type(parameter.type.replace(', ', ','))}"
    meaning = _PLACEHOLDER.sub(r"`\1`", parameter.comment)
    return f"- `{parameter.name}`{kind}{default}: {meaning}"


# A name with a placeholder, such as <table>_changes, which Markdown would take for HTML.
_PLACEHOLDER = re.compile(r"(\S*<\w+>\w*)")


def _type(name: str) -> str:
    """Return a type, as code if Markdown would take a part of it for HTML."""
    return f"`{name}`" if "<" in name else name


def metadata_tables() -> Iterator[str]:
    """Yield the metadata tables with their columns, each column of several similar tables once."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    same: dict[str, list[str]] = {}
    for name, table in METADATA_TABLES.items():
        rows = [(one.name, spark_type(one.type).simpleString(), one.about) for one in table.columns]
        twin = next((other for other, columns in sections.items() if columns == rows), None)
        if twin is None:
            sections[name] = rows
            same[name] = []
        else:
            same[twin].append(name)
    for name, rows in sections.items():
        yield f"## `{name}`"
        yield ""
        if same[name]:
            yield f"The same columns: {', '.join(f'`{other}`' for other in same[name])}."
            yield ""
        # A table that has all columns of another one names it.
        parts = [other for other in sections if other != name and set(sections[other]) < set(rows)]
        part = max(parts, key=lambda other: len(sections[other]), default=None)
        if part is not None:
            yield f"The columns of [`{part}`](#{part}), and:"
            yield ""
        own = [row for row in rows if part is None or row not in sections[part]]
        constants: dict[str, list[str]] = {}
        for column, kind, about in own:
            if about in ("always null", "always 0", "always empty"):
                constants.setdefault(about.removeprefix("always "), []).append(f"`{column}`")
            else:
                yield f"- `{column}` {_type(kind)}: {about}"
        yield from (f"- Always {value}: {', '.join(names)}." for value, names in constants.items())
        yield ""


def engines() -> Iterator[str]:
    """Yield the file versions and table features of engines, those with the fewest features first."""
    lines: list[tuple[str, ...]] = []
    above = 0
    for engine in sorted(ENGINES, key=lambda engine: (engine.reads.bit_count(), len(engine.read_versions))):
        names = ", ".join(feature_names(engine.reads & ~above))
        features = names if not above else f"as above, and {names}" if names else "as above"
        assert not above & ~engine.reads
        above = engine.reads
        versions = ", ".join(sorted(engine.read_versions))
        if engine.written_versions != engine.read_versions:
            versions += f" (writes {', '.join(sorted(engine.written_versions))})"
        lines.append((engine.name, versions, f"{features} ({engine.note})" if engine.note else features))
    yield from markdown(("engine", "file versions", "table features"), lines)


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
        ("", "releases", "tests"),
        (
            (
                "Python",
                ", ".join(pythons),
                "all tests; the oldest: fast tests",
            ),
            ("Spark", ", ".join(sparks), "`make test-spark-versions`"),
            (
                "pylance beside us",
                ", ".join(beside),
                "the same tables at the same time",
            ),
            ("pylance that wrote", ", ".join(wrote), "its tables, read and changed"),
        ),
    )


def tested() -> Iterator[str]:
    """Yield the runs of the tests that were recorded, by what they ran with."""
    rows = json.loads((ROOT / "tests" / "tested.json").read_text())
    names = ("python", "pyspark", "pyarrow", "pylance", "tests", "passed", "skipped", "date")
    ordered = sorted(rows, key=lambda row: (*(_release(row[name]) for name in names[:4]), row["tests"]))
    heads = ("Python", "Spark", "PyArrow", "pylance", *names[4:])
    runs = [[str(row[name]) for name in names] for row in ordered]
    for place in range(3, -1, -1):
        runs = _merged(runs, place)
    yield from markdown(heads, runs)


def _merged(runs: Sequence[Sequence[str]], place: int) -> list[list[str]]:
    """Return runs that differ only in one cell as one run with the cells' values."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for run in runs:
        groups.setdefault((tuple(run[:place]), tuple(run[place + 1 :])), []).append(run[place])
    return [[*before, ", ".join(values), *after] for (before, after), values in groups.items()]


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
    """Yield the ratios of the same work by other table formats, a column for each peer.

    Figures of `make bench-peers` replace older figures, whose script is not in the repository.
    """
    every = _records()
    benches = ("bench_peers", "beside_iceberg")
    groups = ([record for record in every if record.bench == bench] for bench in benches)
    records = next(filter(None, groups), [])
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


def encodings() -> Iterator[str]:
    """Yield the ratios of bytes and times of single columns, as bench_encodings has stored them."""
    records = [record for record in _records() if record.bench == "bench_encodings"]
    ratios = {(record.case, record.metric, record.peer_name): record.ratio for record in records}
    columns = {
        name: key for name, key in _ENCODING_COLUMNS.items() if any(each[1:] == key for each in ratios)
    }
    cases = dict.fromkeys(record.case for record in records)
    rows = ([case, *(_ratio(ratios.get((case, *key))) for key in columns.values())] for case in cases)
    yield from markdown(("column", *columns), rows)
    yield ""
    if len(columns) < len(_ENCODING_COLUMNS):
        yield "No times of this release are kept yet: `make bench-encodings ARGS=--keep` measures them."
        yield ""
    yield from sorted({f"{record.machine}; {record.date[:10]}." for record in records})


_ENCODING_COLUMNS = {
    "bytes: pylance": ("size", "pylance"),
    "bytes: Parquet snappy": ("size", "Parquet snappy"),
    "bytes: Parquet zstd": ("size", "Parquet zstd"),
    "write: pylance": ("processor time, write", "pylance"),
    "write: Parquet": ("processor time, write", "Parquet"),
    "read its own file: pylance": ("processor time, read own", "pylance"),
    "read its own file: Parquet": ("processor time, read own", "Parquet"),
    "read pylance's file: pylance": ("processor time, read", "pylance"),
    "the same with numba": ("processor time, read, numba", "pylance"),
}


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def memory_of_operations() -> Iterator[str]:
    """Yield the peak memory of each process by operation, a column for each table, from the results."""
    records = [record for record in _records() if record.bench == "bench_memory_operations"]
    peaks: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for record in records:
        operation, rows, width = re.fullmatch(r"(.+), (\d+) rows of (\d+) bytes", record.case).groups()  # type: ignore[union-attr]
        process = record.metric.removeprefix("peak of ")
        peaks.setdefault((operation, process), {})[int(width), int(rows)] = record.ours
    tables = sorted({table for by_table in peaks.values() for table in by_table})
    heads = ("operation", "process", *(f"{rows:,} rows of {width:,} bytes" for width, rows in tables))
    yield from markdown(
        heads,
        (
            (*key, *(f"{by_table[table]:.0f}" if table in by_table else "" for table in tables))
            for key, by_table in sorted(
                peaks.items(), key=lambda item: (item[0][0].startswith("Spark"), item[0])
            )
        ),
    )
    yield ""
    yield from sorted({f"{record.machine}; {record.date[:10]}." for record in records})


def worker_memory() -> Iterator[str]:
    """Yield the most memory of a Python worker, by the kind of step, as bench_large has stored it."""
    peaks: dict[str, float] = {}
    for record in _records():
        if record.bench == "bench_large" and record.metric == "peak memory":
            is_index = record.case.endswith((": index", ": look-ups"))
            use = "building and searching indexes" if is_index else "scans, writes and merges"
            peaks[use] = max(peaks.get(use, 0.0), record.ours)
    values = ", ".join(f"up to {value:,.0f} MB for {use}" for use, value in sorted(peaks.items()))
    yield f"- Python worker, one per task, with its cache: {values or 'unknown'} (`make bench-large`)."


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
    "worker memory": worker_memory,
    "encodings": encodings,
    "memory of operations": memory_of_operations,
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
    paths = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "NOTES.md"]
    return [path for path in paths if MARKS.search(path.read_text())]


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
