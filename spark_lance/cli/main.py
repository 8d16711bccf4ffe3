"""The command line: what is made of its commands for click, and what becomes of errors.

Exit codes: 0 fine, 1 `verify` found damage, 2 the command failed (with one line on stderr) or was misused.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import click

from spark_lance.cli.commands import COMMANDS, COMPLETE, PROGRAM, Arguments, Command
from spark_lance.cli.output import visible
from spark_lance.errors import LanceError
from spark_lance.io.failures import local_failure
from spark_lance.redaction import redacted
from spark_lance.release import RELEASE

_FAILED = 2
_INTERRUPTED = 130
_ABOUT = "Look at Lance tables, change them, keep them small. Exit code 2 means that a command failed."


class _Sections(click.Group):
    """A group whose help shows its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands, each with its line."""
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, each.help) for name, each in commands.items()])


class _WithExample(click.Command):
    """A command whose help ends with a call of it, and with what its exit codes mean."""

    command: Command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what stands behind the options."""
        with formatter.section("Example"):
            formatter.write_text(f"{ctx.find_root().command_path} {self.command.example}")
        with formatter.section("Exit codes"):
            formatter.write_text(self.command.codes)


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
    click.version_option(RELEASE, prog_name=PROGRAM, message="%(prog)s %(version)s")(group)
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
    def callback(**arguments: Any) -> Callable[[], int]:
        return lambda: command.function(Arguments(**arguments))

    result = _WithExample(name, callback=callback, params=command.all_parameters, help=command.help)
    result.command = command
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments, without the program's name; those of the process by default.
    """
    try:
        words = None if argv is None else list(argv)
        # Click has ways of its own with some errors, so it only parses; a number is what help gives.
        exit_code = command_line().main(words, complete_var=COMPLETE, standalone_mode=False)
        code = exit_code() if callable(exit_code) else int(exit_code or 0)
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        sys.stderr.write(f"{visible(_usage(error))}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader of the output has closed it; Python would report that once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LanceError, OSError) as error:
        sys.stderr.write(f"error: {visible(redacted(str(_as_package_error(error))))}\n")
        return _FAILED
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED


def _usage(error: click.ClickException) -> str:
    """Return what click shows of an error, in a text of our own so that it can be made visible."""
    stream = io.StringIO()
    error.show(stream)
    return redacted(stream.getvalue().rstrip("\n"))


def _as_package_error(error: LanceError | OSError) -> LanceError | OSError:
    """Return an error in our words; what no layer below has caught names no file if it is of the output."""
    if isinstance(error, LanceError):
        return error
    return local_failure(error, f"using {error.filename}" if error.filename else "writing the output")
