"""The command line: its commands, their parameters, and what becomes of errors.

`COMMANDS` is the whole of it. Exit codes: 0 fine, 1 `verify` found damage, 2 the command failed (with one
line on stderr) or was misused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from spark_lance.cli.names import COMPLETE, PROGRAM, Arguments
from spark_lance.errors import LanceError

__all__ = ["COMMANDS", "COMMON", "Command", "Group", "command_line", "main"]

_FAILED = 2
_INTERRUPTED = 130
_ABOUT = "Look at Lance tables, change them, keep them small. Exit code 2 means that a command failed."


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: module and name of the function that does it, which takes the parameters and returns the exit
            code. Only that module is imported.
        help: what it does, in a line.
        parameters: what it takes beside what all take.
        opens: whether it takes a table, and the options of all commands that do.
        branches: whether it takes a branch of the table.
    """

    run: str
    help: str
    parameters: tuple[click.Parameter, ...] = ()
    opens: bool = True
    branches: bool = True

    @property
    def function(self) -> Callable[[Arguments], int]:
        """What does it."""
        module, _, name = self.run.partition(".")
        found: Callable[[Arguments], int] = getattr(import_module(f"spark_lance.cli.{module}"), name)
        return found


@dataclass(frozen=True)
class Group:
    """Commands about one thing."""

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
    click.Option(["--json"], is_flag=True, help="Print JSON."),
    click.Option(["--wide"], is_flag=True, help="Cut nothing to the width of the window."),
)
_BRANCH = click.Option(["--branch"], help="A branch instead of the main line.")
_NAME = click.Argument(["name"])
_SOURCE = click.Argument(["source"])
_AT = (
    click.Option(
        ["--version"], metavar="VERSION", help="Number or tag of the version; the newest by default."
    ),
    click.Option(
        ["--asof"], metavar="TIME", help="The newest version at this time, in UTC if it has no zone."
    ),
)
_TO = click.Argument(["to"], required=False, metavar="[VERSION]")
_COLUMNS = click.Option(["--columns"], metavar="A,B", help="The columns, in this order; all by default.")
_WHERE = click.Option(
    ["where", "--where", "--filter"], metavar="SQL", help="Only rows for which this condition is true."
)
_ROWS = click.Option(
    ["-n", "--rows"], type=click.IntRange(min=0), default=10, show_default=True, help="How many."
)
_FORMAT = click.Option(
    ["--format"],
    type=click.Choice(("parquet", "csv", "arrow", "jsonl")),
    help="Format of the file; by default its ending tells.",
)
_FILE_ROWS = click.Option(
    ["--max-rows-per-file"], type=click.IntRange(min=1), help="Rows of a new file at most."
)
_FILE_VERSION = click.Option(
    ["--file-version"], help="Version of the new data files; the table's by default."
)
_DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Change nothing, show what would be.")

COMMANDS: Mapping[str, Mapping[str, Command | Group]] = {
    "Look at a table": {
        "inspect": Command(
            "inspect_command.inspect",
            "A table's columns, rows, files and indices.",
            (
                click.Option(["--html"], metavar="FILE", help="Write a page that draws the table."),
                *_AT,
            ),
        ),
        "schema": Command(
            "inspect_commands.schema", "Columns and the fields inside them, with their ids.", _AT
        ),
        "stats": Command("inspect_commands.stats", "What each column takes, and how it is encoded.", _AT),
        "history": Command(
            "inspect_commands.history",
            "The operation behind each version, newest first.",
            (
                *_AT,
                click.Option(["--limit"], type=int, default=20, show_default=True, help="Versions to show."),
            ),
        ),
        "doctor": Command(
            "inspect_commands.doctor", "A table's features, the engines that can use it, and advice."
        ),
    },
    "Read rows": {
        "head": Command("row_commands.head", "The first rows.", (_ROWS, _COLUMNS, _WHERE, *_AT)),
        "sample": Command(
            "row_commands.sample",
            "Rows chosen at random.",
            (_ROWS, _COLUMNS, click.Option(["--seed"], type=int, help="Choose the same again."), *_AT),
        ),
        "count": Command("row_commands.count", "The number of rows.", (_WHERE, *_AT)),
        "sql": Command(
            "sql_command.sql",
            "What a query of DuckDB answers; the table is called t in it.",
            (click.Argument(["query"]), *_AT),
        ),
        "search": Command(
            "row_commands.search",
            "The rows nearest to a vector, or with words, best first.",
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
                "list": Command("version_commands.list_tags", "The tags."),
                "create": Command("version_commands.create_tag", "Give a version a name.", (_NAME, _TO)),
                "update": Command("version_commands.update_tag", "Move a tag to a version.", (_NAME, _TO)),
                "delete": Command(
                    "version_commands.delete_tag", "Delete a tag; its version stays.", (_NAME,)
                ),
            },
        ),
        "branches": Group(
            "Lines of versions.",
            {
                "list": Command("version_commands.list_branches", "The branches."),
                "create": Command(
                    "version_commands.create_branch", "Begin a branch at a version.", (_NAME, _TO)
                ),
                "delete": Command("version_commands.delete_branch", "Delete a branch.", (_NAME,)),
            },
        ),
        "restore": Command(
            "version_commands.restore",
            "Make the content of an old version the newest version.",
            (click.Argument(["to"], metavar="VERSION"),),
        ),
    },
    "Upkeep": {
        "compact": Command(
            "upkeep_commands.compact",
            "Merge small fragments and drop deleted rows.",
            (
                _DRY_RUN,
                click.Option(["--target-rows"], type=int, help="Rows of a new fragment (1048576)."),
                click.Option(["--max-bytes"], type=int, help="Bytes to rewrite at most in this run."),
                _FILE_VERSION,
                click.Option(
                    ["--defer-index-remap"],
                    is_flag=True,
                    help="Keep the files of indices, which follow the rows.",
                ),
                click.Option(["--threads"], type=int, help="Groups to rewrite at the same time (1)."),
            ),
        ),
        "vacuum": Command(
            "upkeep_commands.vacuum",
            "Delete old versions and the files that only they need.",
            (
                _DRY_RUN,
                click.Option(["--older-than"], help="Age of what goes, such as 36h or 7days (2weeks)."),
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
                "shards": Command("wal_commands.shards", "The shards, and what is not in the table yet."),
                "compact": Command(
                    "wal_commands.compact",
                    "Bring logged rows into the table, and delete what nobody needs any more.",
                    (
                        _DRY_RUN,
                        click.Option(
                            ["--flush"],
                            is_flag=True,
                            help="Bring what is only in logs, too; writers that are at work are displaced.",
                        ),
                        click.Option(
                            ["--older-than"],
                            help="Age of what is deleted after it came into the table, such as 10m (1h).",
                        ),
                    ),
                ),
            },
        ),
        "verify": Command("upkeep_commands.check", "Read a version as a whole and check everything.", _AT),
        "index": Group(
            "Indices.",
            {
                "list": Command(
                    "index_commands.list_indices", "The indices, and how many rows they know.", _AT
                ),
                "build": Command(
                    "index_commands.build_index",
                    "Build an index over a column.",
                    (
                        click.Argument(["column"]),
                        click.Argument(["type"]),
                        click.Option(["--name"], help="Of the index; the column's and _idx by default."),
                        click.Option(
                            ["--replace/--no-replace"], default=True, help="Replace one of this name."
                        ),
                        click.Option(["--metric"], help="Of vectors: l2, cosine, dot or hamming."),
                        click.Option(["--partitions"], type=int, help="Of a vector index."),
                        click.Option(
                            ["--option"],
                            multiple=True,
                            metavar="NAME=VALUE",
                            help="Of this kind; may be repeated.",
                        ),
                    ),
                ),
                "optimize": Command(
                    "index_commands.optimize_indices",
                    "Index the rows that are not covered yet.",
                    (click.Argument(["name"], required=False),),
                ),
                "drop": Command("index_commands.drop_index", "Take an index out of the table.", (_NAME,)),
            },
        ),
    },
    "Move data": {
        "export": Command(
            "transfer_commands.export_rows",
            "Write rows to a file, or with - to standard output.",
            (
                click.Argument(["target"], metavar="FILE"),
                _FORMAT,
                click.Option(["--overwrite"], is_flag=True, help="Replace a file that exists."),
                _COLUMNS,
                _WHERE,
                click.Option(["--limit"], type=click.IntRange(min=0), help="Rows at most."),
                *_AT,
            ),
        ),
        "import": Command(
            "transfer_commands.import_rows",
            "Bring rows of a file or folder into a table.",
            (
                _SOURCE,
                _FORMAT,
                click.Option(
                    ["--mode"],
                    type=click.Choice(("append", "create", "overwrite")),
                    default="append",
                    show_default=True,
                    help="What becomes of a table that is there.",
                ),
                _FILE_ROWS,
            ),
        ),
        "convert": Command(
            "convert_command.convert",
            "Make a table of a Parquet folder or of a Delta table.",
            (
                _SOURCE,
                _FILE_ROWS,
                click.Option(["--batch-rows"], type=click.IntRange(min=1), default=1 << 17, hidden=True),
                click.Option(["--file-version"], help="Version of the data files (2.2)."),
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
            (click.Argument(["shell"], type=click.Choice(("bash", "zsh", "fish"))),),
            opens=False,
        ),
    },
}


class _Sections(click.Group):
    """A group whose help shows its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands, each with its line."""
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, each.help) for name, each in commands.items()])


class _Part(click.Group):
    """A group of commands about one thing; with nothing but a table it is the first of them, which lists."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that words mean, and the words behind it."""
        alone = all(word.startswith("-") for word in args[1:2])
        if alone and not args[0].startswith("-") and not get_close_matches(args[0], self.commands):
            args = [next(iter(self.commands)), *args]
        return super().resolve_command(ctx, args)


def command_line() -> click.Group:
    """Return the program as click knows it."""
    group = _Sections(PROGRAM, help=_ABOUT, context_settings={"help_option_names": ["-h", "--help"]})
    release: str = import_module(__name__.partition(".")[0]).__version__
    click.version_option(release, prog_name=PROGRAM, message="%(prog)s %(version)s")(group)
    for commands in COMMANDS.values():
        for name, each in commands.items():
            if isinstance(each, Command):
                group.add_command(_click_command(name, each))
            else:
                inner = _Part(name, help=each.help)
                for part, command in each.commands.items():
                    inner.add_command(_click_command(part, command))
                group.add_command(inner)
    return group


def _click_command(name: str, command: Command) -> click.Command:
    def chosen(**given: Any) -> Callable[[], int]:
        return lambda: command.function(Arguments(**given))

    parameters = list(command.parameters)
    if command.opens:
        # Source and target of a transfer stand in the order in which rows go.
        place = 1 if _SOURCE in parameters else 0
        lines = (_BRANCH,) if command.branches else ()
        parameters = [*parameters[:place], _PATH, *parameters[place:], *lines, *COMMON]
    return click.Command(name, callback=chosen, params=parameters, help=command.help)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments, without the program's name; those of the process by default.
    """
    try:
        words = None if argv is None else list(argv)
        # Click has ways of its own with some errors, so it only parses; a number is what help gives.
        chosen = command_line().main(words, complete_var=COMPLETE, standalone_mode=False)
        code = chosen() if callable(chosen) else int(chosen or 0)
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader of the output has closed it; Python would report that once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LanceError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
