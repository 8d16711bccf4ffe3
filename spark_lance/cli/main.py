"""The command line: its commands, their arguments, and what becomes of errors.

Exit codes: 0 fine, 1 `verify` found damage, 2 the command failed (with one line on stderr) or was misused.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_lance.cli import inspect_commands, upkeep_commands
from spark_lance.errors import LanceError

__all__ = ["COMMANDS", "Command", "main"]

_FAILED = 2
_INTERRUPTED = 130

Argument = tuple[tuple[str, ...], dict[str, object]]


@dataclass(frozen=True)
class Command:
    """A command: what it does, in a line, and its arguments besides those that all have."""

    run: Callable[[argparse.Namespace], int]
    help: str
    arguments: tuple[Argument, ...] = ()


_VERSION: Argument = (("--version",), {"help": "number or tag of the version; the newest by default"})
_DRY_RUN: Argument = (("--dry-run",), {"action": "store_true", "help": "change nothing, show what would be"})

COMMANDS = {
    "inspect": Command(inspect_commands.inspect, "a table's columns, rows, files and indices", (_VERSION,)),
    "history": Command(
        inspect_commands.history,
        "the operation behind each version, newest first",
        (_VERSION, (("--limit",), {"type": int, "default": 20, "help": "versions to show (20)"})),
    ),
    "doctor": Command(inspect_commands.doctor, "a table's features, the engines that can use it, and advice"),
    "compact": Command(
        upkeep_commands.compact,
        "merge small fragments and drop deleted rows",
        (
            _DRY_RUN,
            (("--target-rows",), {"type": int, "help": "rows of a new fragment (1048576)"}),
            (("--max-bytes",), {"type": int, "help": "bytes to rewrite at most in this run"}),
            (("--file-version",), {"help": "version of the new data files; the table's by default"}),
            (
                ("--defer-index-remap",),
                {"action": "store_true", "help": "keep indices, which follow the rows"},
            ),
            (("--threads",), {"type": int, "help": "groups to rewrite at the same time (1)"}),
        ),
    ),
    "vacuum": Command(
        upkeep_commands.vacuum,
        "delete old versions and the files that only they need",
        (
            _DRY_RUN,
            (("--older-than",), {"help": "age of the versions that go, such as 36h or 7days (2weeks)"}),
            (("--retain-versions",), {"type": int, "help": "how many of the newest versions stay"}),
            (
                ("--allow-short-retention",),
                {
                    "action": "store_true",
                    "help": "let versions go that are younger than 24h; only while nothing reads them",
                },
            ),
            (
                ("--delete-unverified",),
                {
                    "action": "store_true",
                    "help": "delete files that no version names whatever their age; only while nobody writes",
                },
            ),
        ),
    ),
    "verify": Command(upkeep_commands.check, "read a version as a whole and check everything", (_VERSION,)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments, without the program's name; those of the process by default.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        code = COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output has closed it; Python would report that once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LanceError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_lance", description="Look at Lance tables, check them, keep them small."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.help, description=command.help)
        one.add_argument("path", help="a path or URI")
        one.add_argument(
            "--storage",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="option of the store, such as aws_region=eu-central-1; may be repeated",
        )
        one.add_argument("--branch", help="a branch instead of the main line")
        one.add_argument("--json", action="store_true", help="print JSON")
        for names, settings in command.arguments:
            one.add_argument(*names, **settings)  # type: ignore[arg-type]
    return parser
