"""All commands of the CLI with their parameters and examples, and the names that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TypeAlias

import click

# Name of the installed program, and the environment variable of shell completion.
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
    codes: str = "0 done, 2 it failed"

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
        help="Option of the store, such as aws_region=eu-central-1; may be repeated.",
    ),
    click.Option(
        ["--allowed-bases"],
        multiple=True,
        metavar="URI",
        help="Place outside the table that it may use, with all that is below it; may be repeated.",
    ),
    click.Option(["--json"], is_flag=True, help="Print JSON."),
    click.Option(["--wide"], is_flag=True, help="Cut nothing to the width of the window."),
)
_BRANCH = click.Option(["--branch"], help="A branch instead of the main line.")
_NAME = click.Argument(["name"])
_SOURCE = click.Argument(["source"])
_AT = (
    click.Option(
        ["--version"], metavar="VERSION", help="Number or tag of the version.", show_default="the newest"
    ),
    click.Option(
        ["--asof"], metavar="TIME", help="The newest version at this time, in UTC if it has no zone."
    ),
)
_TO = click.Argument(["to"], required=False, metavar="[VERSION]")
_COLUMNS = click.Option(["--columns"], metavar="A,B", help="The columns, in this order.", show_default="all")
_WHERE = click.Option(
    ["where", "--where", "--filter"], metavar="SQL", help="Only rows for which this condition is true."
)
_TEXT_AS = click.Option(
    ["--text-as"],
    type=click.Choice(("string", "binary")),
    help="Read text as binary, for text that is not UTF-8.",
    show_default="string",
)
_ROWS = click.Option(
    ["-n", "--rows"], type=click.IntRange(min=0), default=10, show_default=True, help="How many."
)
_FORMAT = click.Option(
    ["--format"],
    type=click.Choice(("parquet", "csv", "arrow", "jsonl")),
    help="Format of the file.",
    show_default="what its ending says",
)
_FILE_ROWS = click.Option(
    ["--max-rows-per-file"],
    type=click.IntRange(min=1),
    help="Rows of a new file at most.",
    show_default="1048576",
)
_FILE_VERSION = click.Option(
    ["--file-version"], help="Version of the new data files.", show_default="the table's"
)
_DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Change nothing, show what would be.")


def _older_than(what: str, default: str) -> click.Option:
    return click.Option(["--older-than"], help=what, show_default=default)


COMMANDS: Mapping[str, Mapping[str, Command | Group]] = {
    "Look at a table": {
        "inspect": Command(
            "html_commands.inspect",
            "A table's columns, rows, files and indices.",
            "inspect flights.lance --html flights.html",
            (
                click.Option(["--html"], metavar="FILE", help="Write a page that draws the table."),
                *_AT,
            ),
        ),
        "schema": Command(
            "inspect_commands.schema",
            "Columns and the fields inside them, with their ids.",
            "schema flights.lance --version 1",
            _AT,
        ),
        "stats": Command(
            "inspect_commands.stats",
            "Size and encoding of each column.",
            "stats flights.lance --json",
            _AT,
        ),
        "history": Command(
            "inspect_commands.history",
            "The operation behind each version, newest first.",
            "history flights.lance --limit 5",
            (
                *_AT,
                click.Option(["--limit"], type=int, default=20, show_default=True, help="Versions to show."),
            ),
        ),
        "doctor": Command(
            "inspect_commands.doctor",
            "A table's features, the engines that can use it, and advice.",
            "doctor flights.lance",
        ),
    },
    "Read rows": {
        "head": Command(
            "row_commands.head",
            "The first rows.",
            'head flights.lance -n 5 --where "delay > 60"',
            (_ROWS, _COLUMNS, _WHERE, _TEXT_AS, *_AT),
        ),
        "sample": Command(
            "row_commands.sample",
            "Rows chosen at random.",
            "sample flights.lance -n 3 --seed 7",
            (_ROWS, _COLUMNS, click.Option(["--seed"], type=int, help="Choose the same again."), *_AT),
        ),
        "count": Command(
            "row_commands.count",
            "The number of rows.",
            "count flights.lance --where \"carrier = 'UA'\"",
            (_WHERE, *_AT),
        ),
        "sql": Command(
            "row_commands.sql",
            "Run a DuckDB query; the table is called t in it.",
            'sql flights.lance "SELECT carrier, avg(delay) FROM t GROUP BY carrier"',
            (click.Argument(["query"]), *_AT),
        ),
        "search": Command(
            "row_commands.search",
            "The rows nearest to a vector, or with words, best first.",
            'search flights.lance --column vector --vector "[0.1,0.2,0.3]" -n 5',
            (
                click.Option(["--vector"], metavar="NUMBERS", help="The vector, such as [0.1,0.2]."),
                click.Option(["--like-row"], type=int, help="The vector of the row at this place."),
                click.Option(["--text"], help="Words; a phrase in double quotes."),
                click.Option(["--column"], help="What is searched; needed if there are several."),
                click.Option(["--nprobes"], type=int, help="Partitions of a vector index to look into."),
                click.Option(["--refine-factor"], type=int, help="Measure so many times k rows exactly."),
                _ROWS,
                _COLUMNS,
                _WHERE,
                *_AT,
            ),
        ),
        "diff": Command(
            "row_commands.diff",
            "How many rows changed between two versions, or which.",
            "diff flights.lance 1 2 --show inserted",
            (
                click.Argument(["begin"], metavar="FROM"),
                click.Argument(["end"], required=False, metavar="[TO]"),
                click.Option(
                    ["--show"], type=click.Choice(("inserted", "updated", "deleted")), help="These rows."
                ),
                _ROWS,
                _COLUMNS,
            ),
        ),
    },
    "Versions": {
        "tags": Group(
            "Names of versions.",
            {
                "list": Command("upkeep_commands.list_tags", "The tags.", "tags list flights.lance"),
                "create": Command(
                    "upkeep_commands.create_tag",
                    "Give a version a name.",
                    "tags create flights.lance monday 2",
                    (_NAME, _TO),
                ),
                "update": Command(
                    "upkeep_commands.update_tag",
                    "Move a tag to a version.",
                    "tags update flights.lance good 2",
                    (_NAME, _TO),
                ),
                "delete": Command(
                    "upkeep_commands.delete_tag",
                    "Delete a tag; its version stays.",
                    "tags delete flights.lance good",
                    (_NAME,),
                ),
            },
        ),
        "branches": Group(
            "Lines of versions.",
            {
                "list": Command(
                    "upkeep_commands.list_branches", "The branches.", "branches list flights.lance"
                ),
                "create": Command(
                    "upkeep_commands.create_branch",
                    "Begin a branch at a version.",
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
            "Make the content of an old version the newest version.",
            "restore flights.lance 1",
            (click.Argument(["to"], metavar="VERSION"),),
        ),
    },
    "Upkeep": {
        "compact": Command(
            "upkeep_commands.compact",
            "Merge small fragments and drop deleted rows.",
            "compact flights.lance --dry-run",
            (
                _DRY_RUN,
                click.Option(
                    ["--target-rows"], type=int, help="Rows of a new fragment.", show_default="1048576"
                ),
                click.Option(["--max-bytes"], type=int, help="Bytes to rewrite at most in this run."),
                click.Option(
                    ["--materialize-deletions-threshold"],
                    type=click.FloatRange(0, 1),
                    metavar="SHARE",
                    help="Rewrite fragments with a larger share of deleted rows; 0: with any.",
                    show_default="0.1",
                ),
                _FILE_VERSION,
                click.Option(
                    ["--defer-index-remap"],
                    is_flag=True,
                    help="Keep the files of indices, which follow the rows.",
                ),
                click.Option(
                    ["--threads"], type=int, help="Groups to rewrite at the same time.", show_default="1"
                ),
            ),
        ),
        "vacuum": Command(
            "upkeep_commands.vacuum",
            "Delete old versions and the files that only they need.",
            "vacuum flights.lance --older-than 30days --dry-run",
            (
                _DRY_RUN,
                _older_than("Age of what goes, such as 36h or 7days.", "2weeks"),
                click.Option(["--retain-versions"], type=int, help="How many of the newest versions stay."),
                click.Option(
                    ["--allow-short-retention"],
                    is_flag=True,
                    help="Let versions go that are younger than 24h; only while nothing reads them.",
                ),
                click.Option(
                    ["--delete-unverified"],
                    is_flag=True,
                    help="Delete files that no version names whatever their age; only while nobody writes.",
                ),
            ),
        ),
        "wal": Group(
            "Rows that writers have logged and that are not in the table yet (MemWAL).",
            {
                "shards": Command(
                    "wal_commands.shards",
                    "The shards, and what is not in the table yet.",
                    "wal shards bookings.lance",
                ),
                "compact": Command(
                    "wal_commands.compact",
                    "Bring logged rows into the table, and delete what nobody needs any more.",
                    "wal compact bookings.lance --dry-run",
                    (
                        _DRY_RUN,
                        click.Option(
                            ["--flush"],
                            is_flag=True,
                            help="Bring what is only in logs, too; writers that are at work are displaced.",
                        ),
                        _older_than(
                            "Age of what is deleted after it came into the table, such as 10m.", "1h"
                        ),
                    ),
                ),
            },
        ),
        "verify": Command(
            "upkeep_commands.check",
            "Read a version as a whole and check everything.",
            "verify flights.lance --version 1",
            (
                *_AT,
                click.Option(
                    ["--repair"],
                    is_flag=True,
                    help="First move manifests that are not whole to _torn/ and restore the version before.",
                ),
            ),
            codes="0 all is well, 1 something is damaged, 2 it failed",
        ),
        "index": Group(
            "List, build, optimize and drop indices.",
            {
                "list": Command(
                    "upkeep_commands.list_indices",
                    "The indices, and how many rows they know.",
                    "index list flights.lance",
                    _AT,
                ),
                "build": Command(
                    "upkeep_commands.build_index",
                    "Build an index over a column.",
                    "index build flights.lance id BTREE",
                    (
                        click.Argument(["column"]),
                        click.Argument(["type"]),
                        click.Option(["--name"], help="Of the index.", show_default="the column's and _idx"),
                        click.Option(
                            ["--replace/--no-replace"],
                            default=True,
                            show_default=True,
                            help="Replace one of this name.",
                        ),
                        click.Option(
                            ["--metric"], help="Of vectors: l2, cosine, dot or hamming.", show_default="l2"
                        ),
                        click.Option(
                            ["--partitions"],
                            type=int,
                            help="Of a vector index.",
                            show_default="by the number of rows",
                        ),
                        click.Option(
                            ["--option"],
                            multiple=True,
                            metavar="NAME=VALUE",
                            help="Of this kind; may be repeated.",
                        ),
                    ),
                ),
                "optimize": Command(
                    "upkeep_commands.optimize_indices",
                    "Index the rows that are not covered yet.",
                    "index optimize flights.lance",
                    (click.Argument(["name"], required=False),),
                ),
                "drop": Command(
                    "upkeep_commands.drop_index",
                    "Take an index out of the table.",
                    "index drop flights.lance carrier_idx",
                    (_NAME,),
                ),
            },
        ),
    },
    "Move data": {
        "export": Command(
            "transfer_commands.export_rows",
            "Write rows to a file, or with - to standard output.",
            'export flights.lance june.csv --columns id,delay --where "id > 10"',
            (
                click.Argument(["target"], metavar="FILE"),
                _FORMAT,
                click.Option(["--overwrite"], is_flag=True, help="Replace a file that exists."),
                _COLUMNS,
                _WHERE,
                click.Option(["--limit"], type=click.IntRange(min=0), help="Rows at most."),
                _TEXT_AS,
                *_AT,
            ),
        ),
        "import": Command(
            "transfer_commands.import_rows",
            "Bring rows of a file or folder into a table.",
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
            "Make a table of a Parquet folder or of a Delta table.",
            "convert flights_parquet new.lance --stable-row-ids",
            (
                _SOURCE,
                _FILE_ROWS,
                click.Option(["--batch-rows"], type=click.IntRange(min=1), default=1 << 17, hidden=True),
                click.Option(["--file-version"], help="Version of the data files.", show_default="2.2"),
                click.Option(
                    ["--stable-row-ids"], is_flag=True, help="Let rows keep their ids when they move."
                ),
            ),
            branches=False,
        ),
    },
    "This program": {
        "completion": Command(
            "completion_command.completion",
            "Print what makes a shell complete commands: add it to its start file.",
            "completion bash",
            (click.Argument(["shell"], type=click.Choice(("bash", "zsh", "fish"))),),
            opens=False,
        ),
    },
}
