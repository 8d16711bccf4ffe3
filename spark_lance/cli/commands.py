"""All commands of the CLI with their parameters, help texts and examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TypeAlias

import click

# Name of the installed program, and the environment variable that click uses for shell completion.
PROGRAM, COMPLETE = "spark-lance", "_SPARK_LANCE_COMPLETE"

# The arguments of a command, one attribute per parameter.
Arguments: TypeAlias = SimpleNamespace


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: module and name of the function to run, which takes the arguments and returns the exit code. Only
            this module is imported.
        help: one-line description.
        example: example arguments, for a table `flights.lance` (for logs, `bookings.lance`).
        parameters: parameters in addition to the common ones.
        opens: whether the command takes a table and the common options.
        branches: whether the command takes `--branch`.
        codes: meaning of the exit codes.
    """

    run: str
    help: str
    example: str
    parameters: tuple[click.Parameter, ...] = ()
    opens: bool = True
    branches: bool = True
    codes: str = "0: success, 2: the command failed"

    @property
    def all_parameters(self) -> list[click.Parameter]:
        """All parameters, in order."""
        result = list(self.parameters)
        if self.opens:
            # In a transfer, the source comes before the table.
            place = 1 if _SOURCE in result else 0
            lines = (_BRANCH,) if self.branches else ()
            result = [*result[:place], _PATH, *result[place:], *lines, *COMMON]
        return result

    @property
    def function(self) -> Callable[[Arguments], int]:
        """The function to run."""
        module, _, name = self.run.partition(".")
        result: Callable[[Arguments], int] = getattr(import_module(f"spark_lance.cli.{module}"), name)
        return result


@dataclass(frozen=True)
class Group:
    """A group of related commands."""

    help: str
    commands: Mapping[str, Command]


_PATH = click.Argument(["path"], metavar="TABLE")
COMMON = (
    click.Option(
        ["--storage"],
        multiple=True,
        metavar="NAME=VALUE",
        help="Store option, such as aws_region=eu-central-1. Can be repeated.",
    ),
    click.Option(
        ["--allowed-bases"],
        multiple=True,
        metavar="URI",
        help="Location outside the table that it may use. Can be repeated.",
    ),
    click.Option(["--json"], is_flag=True, help="Print JSON."),
    click.Option(["--wide"], is_flag=True, help="Do not cut tables to the terminal's width."),
)
_BRANCH = click.Option(["--branch"], help="Use this branch instead of main.")
_NAME = click.Argument(["name"])
_SOURCE = click.Argument(["source"])
_AT = (
    click.Option(
        ["--version"],
        metavar="VERSION",
        help="Version number or tag.",
        show_default="the newest",
    ),
    click.Option(["--asof"], metavar="TIME", help="Newest version at this time (UTC without a zone)."),
)
_TO = click.Argument(["to"], required=False, metavar="[VERSION]")
_COLUMNS = click.Option(
    ["--columns"], metavar="A,B", help="Columns to show, in this order.", show_default="all"
)
_WHERE = click.Option(["where", "--where", "--filter"], metavar="SQL", help="Condition of the rows to use.")
_TEXT_AS = click.Option(
    ["--text-as"],
    type=click.Choice(("string", "binary")),
    help="Read text as bytes if it is not UTF-8.",
    show_default="string",
)
_ROWS = click.Option(
    ["-n", "--rows"], type=click.IntRange(min=0), default=10, show_default=True, help="Number of rows."
)
_FORMAT = click.Option(
    ["--format"],
    type=click.Choice(("parquet", "csv", "arrow", "jsonl")),
    help="File format.",
    show_default="by the file's extension",
)
_FILE_ROWS = click.Option(
    ["--max-rows-per-file"],
    type=click.IntRange(min=1),
    help="Maximum rows in a file.",
    show_default="1048576",
)
_FILE_VERSION = click.Option(
    ["--file-version"], help="File version of new data files.", show_default="the table's"
)
_DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Show the result, but change nothing.")


def _older_than(what: str, default: str) -> click.Option:
    return click.Option(["--older-than"], help=what, show_default=default)


COMMANDS: Mapping[str, Mapping[str, Command | Group]] = {
    "Inspect a table": {
        "inspect": Command(
            "html_commands.inspect",
            "Show a table's columns, rows, files and indexes.",
            "inspect flights.lance --html flights.html",
            (
                click.Option(["--html"], metavar="FILE", help="Write an HTML page with pictures."),
                *_AT,
            ),
        ),
        "schema": Command(
            "inspect_commands.schema",
            "Show columns and nested fields with their ids.",
            "schema flights.lance --version 1",
            _AT,
        ),
        "stats": Command(
            "inspect_commands.stats",
            "Show the size and encoding of each column.",
            "stats flights.lance --json",
            _AT,
        ),
        "history": Command(
            "inspect_commands.history",
            "Show the operation of each version, newest first.",
            "history flights.lance --limit 5",
            (
                *_AT,
                click.Option(
                    ["--limit"], type=int, default=20, show_default=True, help="Number of versions to show."
                ),
            ),
        ),
        "doctor": Command(
            "inspect_commands.doctor",
            "Show a table's features, the engines that can use it, and advice.",
            "doctor flights.lance",
        ),
    },
    "Read rows": {
        "head": Command(
            "row_commands.head",
            "Show the first rows.",
            'head flights.lance -n 5 --where "delay > 60"',
            (_ROWS, _COLUMNS, _WHERE, _TEXT_AS, *_AT),
        ),
        "sample": Command(
            "row_commands.sample",
            "Show random rows.",
            "sample flights.lance -n 3 --seed 7",
            (
                _ROWS,
                _COLUMNS,
                click.Option(["--seed"], type=int, help="Choose the same rows for the same seed."),
                *_AT,
            ),
        ),
        "count": Command(
            "row_commands.count",
            "Count the rows.",
            "count flights.lance --where \"carrier = 'UA'\"",
            (_WHERE, *_AT),
        ),
        "sql": Command(
            "row_commands.sql",
            "Run a DuckDB query on the table, named t.",
            'sql flights.lance "SELECT carrier, avg(delay) FROM t GROUP BY carrier"',
            (click.Argument(["query"]), *_AT),
        ),
        "search": Command(
            "row_commands.search",
            "Search by vector or by words; show the best rows first.",
            'search flights.lance --column vector --vector "[0.1,0.2,0.3]" -n 5',
            (
                click.Option(
                    ["--vector"], metavar="NUMBERS", help="Vector to search for, such as [0.1,0.2]."
                ),
                click.Option(
                    ["--like-row"], type=int, help="Search by the vector of the row at this position."
                ),
                click.Option(["--text"], help="Words to search for; a phrase in double quotes."),
                click.Option(["--column"], help="Column to search, if the table has several."),
                click.Option(["--nprobes"], type=int, help="Number of index partitions to search."),
                click.Option(["--refine-factor"], type=int, help="Compare this many times n rows exactly."),
                _ROWS,
                _COLUMNS,
                _WHERE,
                *_AT,
            ),
        ),
        "diff": Command(
            "row_commands.diff",
            "Count the rows that changed between two versions, or show them.",
            "diff flights.lance 1 2 --show inserted",
            (
                click.Argument(["begin"], metavar="FROM"),
                click.Argument(["end"], required=False, metavar="[TO]"),
                click.Option(
                    ["--show"], type=click.Choice(("inserted", "updated", "deleted")), help="Show these rows."
                ),
                _ROWS,
                _COLUMNS,
            ),
        ),
    },
    "Versions": {
        "tags": Group(
            "List, create, move and delete tags.",
            {
                "list": Command("upkeep_commands.list_tags", "List the tags.", "tags list flights.lance"),
                "create": Command(
                    "upkeep_commands.create_tag",
                    "Create a tag for a version.",
                    "tags create flights.lance monday 2",
                    (_NAME, _TO),
                ),
                "update": Command(
                    "upkeep_commands.update_tag",
                    "Move a tag to another version.",
                    "tags update flights.lance good 2",
                    (_NAME, _TO),
                ),
                "delete": Command(
                    "upkeep_commands.delete_tag",
                    "Delete a tag. Its version is kept.",
                    "tags delete flights.lance good",
                    (_NAME,),
                ),
            },
        ),
        "branches": Group(
            "List, create and delete branches.",
            {
                "list": Command(
                    "upkeep_commands.list_branches", "List the branches.", "branches list flights.lance"
                ),
                "create": Command(
                    "upkeep_commands.create_branch",
                    "Create a branch from a version.",
                    "branches create flights.lance june 2",
                    (_NAME, _TO),
                ),
                "delete": Command(
                    "upkeep_commands.delete_branch",
                    "Delete a branch.",
                    "branches delete flights.lance trial",
                    (_NAME,),
                ),
            },
        ),
        "restore": Command(
            "upkeep_commands.restore",
            "Restore an old version: its content becomes the newest version.",
            "restore flights.lance 1",
            (click.Argument(["to"], metavar="VERSION"),),
        ),
    },
    "Maintain a table": {
        "compact": Command(
            "upkeep_commands.compact",
            "Merge small fragments and remove deleted rows.",
            "compact flights.lance --dry-run",
            (
                _DRY_RUN,
                click.Option(
                    ["--target-rows"],
                    type=int,
                    help="Target rows in a new fragment.",
                    show_default="1048576",
                ),
                click.Option(["--max-bytes"], type=int, help="Maximum bytes to rewrite in this run."),
                click.Option(
                    ["--materialize-deletions-threshold"],
                    type=click.FloatRange(0, 1),
                    metavar="SHARE",
                    help="Rewrite fragments with a larger share of deleted rows.",
                    show_default="0.1",
                ),
                _FILE_VERSION,
                click.Option(
                    ["--defer-index-remap"],
                    is_flag=True,
                    help="Record moved rows now; rewrite index files later.",
                ),
                click.Option(
                    ["--threads"], type=int, help="Groups to rewrite in parallel.", show_default="1"
                ),
            ),
        ),
        "vacuum": Command(
            "upkeep_commands.vacuum",
            "Delete old versions and the files that only they use.",
            "vacuum flights.lance --older-than 30days --dry-run",
            (
                _DRY_RUN,
                _older_than("Delete versions older than this, such as 36h or 7days.", "2weeks"),
                click.Option(["--retain-versions"], type=int, help="Newest versions to keep."),
                click.Option(
                    ["--allow-short-retention"],
                    is_flag=True,
                    help="Delete versions younger than 24h, too. Safe only while nothing reads them.",
                ),
                click.Option(
                    ["--delete-unverified"],
                    is_flag=True,
                    help="Delete unreferenced files of any age. Safe only while nobody writes.",
                ),
            ),
        ),
        "wal": Group(
            "Show and compact logged rows that are not in the table yet (MemWAL).",
            {
                "shards": Command(
                    "wal_commands.shards",
                    "List the shards and their rows outside the table.",
                    "wal shards bookings.lance",
                ),
                "compact": Command(
                    "wal_commands.compact",
                    "Move logged rows into the table, and delete unneeded log files.",
                    "wal compact bookings.lance --dry-run",
                    (
                        _DRY_RUN,
                        click.Option(
                            ["--flush"],
                            is_flag=True,
                            help="Include rows that are only in logs. This stops pylance's writers.",
                        ),
                        _older_than("Delete merged log files older than this, such as 10m.", "1h"),
                    ),
                ),
            },
        ),
        "verify": Command(
            "upkeep_commands.check",
            "Read a whole version and check everything.",
            "verify flights.lance --version 1",
            (
                *_AT,
                click.Option(
                    ["--repair"],
                    is_flag=True,
                    help="First move damaged manifests to _torn/ and restore the version before them.",
                ),
            ),
            codes="0: no damage, 1: damage, 2: the command failed",
        ),
        "index": Group(
            "List, build, optimize and drop indexes.",
            {
                "list": Command(
                    "upkeep_commands.list_indices",
                    "List the indexes, with the number of rows in each.",
                    "index list flights.lance",
                    _AT,
                ),
                "build": Command(
                    "upkeep_commands.build_index",
                    "Build an index on a column.",
                    "index build flights.lance id BTREE",
                    (
                        click.Argument(["column"]),
                        click.Argument(["type"]),
                        click.Option(
                            ["--name"], help="Index name.", show_default="the column name with _idx"
                        ),
                        click.Option(
                            ["--replace/--no-replace"],
                            default=True,
                            show_default=True,
                            help="Replace an index of the same name.",
                        ),
                        click.Option(
                            ["--metric"],
                            help="Distance of vectors: l2, cosine, dot or hamming.",
                            show_default="l2",
                        ),
                        click.Option(
                            ["--partitions"],
                            type=int,
                            help="Partitions of a vector index.",
                            show_default="by the number of rows",
                        ),
                        click.Option(
                            ["--option"],
                            multiple=True,
                            metavar="NAME=VALUE",
                            help="Option of the index type. Can be repeated.",
                        ),
                    ),
                ),
                "optimize": Command(
                    "upkeep_commands.optimize_indices",
                    "Add rows to the indexes that do not cover them yet.",
                    "index optimize flights.lance",
                    (click.Argument(["name"], required=False),),
                ),
                "drop": Command(
                    "upkeep_commands.drop_index",
                    "Drop an index.",
                    "index drop flights.lance carrier_idx",
                    (_NAME,),
                ),
            },
        ),
    },
    "Import and export": {
        "export": Command(
            "transfer_commands.export_rows",
            "Write rows to a file, or to standard output if FILE is -.",
            'export flights.lance june.csv --columns id,delay --where "id > 10"',
            (
                click.Argument(["target"], metavar="FILE"),
                _FORMAT,
                click.Option(["--overwrite"], is_flag=True, help="Replace an existing file."),
                _COLUMNS,
                _WHERE,
                click.Option(["--limit"], type=click.IntRange(min=0), help="Maximum number of rows."),
                _TEXT_AS,
                *_AT,
            ),
        ),
        "import": Command(
            "transfer_commands.import_rows",
            "Write the rows of a file or folder to a table.",
            "import more.parquet flights.lance",
            (
                _SOURCE,
                _FORMAT,
                click.Option(
                    ["--mode"],
                    type=click.Choice(("append", "create", "overwrite")),
                    default="append",
                    show_default=True,
                    help="What to do if the table exists.",
                ),
                _FILE_ROWS,
            ),
        ),
        "convert": Command(
            "transfer_commands.convert",
            "Create a table from a Parquet folder or a Delta table.",
            "convert flights_parquet new.lance --stable-row-ids",
            (
                _SOURCE,
                _FILE_ROWS,
                click.Option(["--batch-rows"], type=click.IntRange(min=1), default=1 << 17, hidden=True),
                click.Option(["--file-version"], help="File version of the data files.", show_default="2.2"),
                click.Option(
                    ["--stable-row-ids"],
                    is_flag=True,
                    help="Give the rows stable row ids.",
                ),
            ),
            branches=False,
        ),
    },
    "Shell": {
        "completion": Command(
            "completion_command.completion",
            "Print the completion script of a shell.",
            "completion bash",
            (click.Argument(["shell"], type=click.Choice(("bash", "zsh", "fish"))),),
            opens=False,
        ),
    },
}
