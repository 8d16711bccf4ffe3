"""Entry point of the CLI: build the click commands, run one, and report errors.

Exit codes: 0 success, 1 `verify` found damage, 2 failure (with one line on stderr) or wrong usage.
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
_ABOUT = "Inspect, change and maintain Lance tables. Exit code 2 means that a command failed."


class _Sections(click.Group):
    """A group whose help shows its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands with their one-line help."""
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, each.help) for name, each in commands.items()])


class _ExampleCommand(click.Command):
    """A command whose help ends with an example and the exit codes."""

    command: Command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example and the exit codes."""
        with formatter.section("Example"):
            formatter.write_text(f"{ctx.find_root().command_path} {self.command.example}")
        with formatter.section("Exit codes"):
            formatter.write_text(self.command.codes)


class _CommandGroup(click.Group):
    """A group of commands. If only a table is given, it runs its first command, which lists."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the arguments, and the arguments after it."""
        alone = all(word.startswith("-") for word in args[1:2])
        if alone and not args[0].startswith("-") and not get_close_matches(args[0], self.commands):
            args = [next(iter(self.commands)), *args]
        return super().resolve_command(ctx, args)


def command_line() -> click.Group:
    """Return the click group of the program."""
    group = _Sections(PROGRAM, help=_ABOUT, context_settings={"help_option_names": ["-h", "--help"]})
    click.version_option(RELEASE, prog_name=PROGRAM, message="%(prog)s %(version)s")(group)
    for commands in COMMANDS.values():
        for name, each in commands.items():
            if isinstance(each, Command):
                group.add_command(_click_command(name, each))
            else:
                inner = _CommandGroup(name, help=each.help)
                for part, command in each.commands.items():
                    inner.add_command(_click_command(part, command))
                group.add_command(inner)
    return group


def _click_command(name: str, command: Command) -> click.Command:
    def callback(**arguments: Any) -> Callable[[], int]:
        return lambda: command.function(Arguments(**arguments))

    result = _ExampleCommand(name, callback=callback, params=command.all_parameters, help=command.help)
    result.command = command
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: arguments without the program's name; the process's arguments by default.
    """
    try:
        words = None if argv is None else list(argv)
        # click handles some errors itself, so it only parses here. `--help` returns a number.
        exit_code = command_line().main(words, complete_var=COMPLETE, standalone_mode=False)
        code = exit_code() if callable(exit_code) else int(exit_code or 0)
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        sys.stderr.write(f"{visible(_usage_text(error))}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader closed the output. Without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LanceError, OSError) as error:
        sys.stderr.write(f"error: {visible(redacted(str(_as_package_error(error))))}\n")
        return _FAILED
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED


def _usage_text(error: click.ClickException) -> str:
    """Return the message of a usage error as one line without secrets. Without arguments, return the help."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        stream = io.StringIO()
        error.show(stream)
        return stream.getvalue().rstrip("\n")
    message = redacted(" ".join(error.format_message().split()))
    message = message.replace("is not a valid integer range.", "is not a whole number.")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return f"error: {message}"
    usage = " ".join(context.get_usage().split())
    return f"error: {message} {usage} (help: {context.command_path} --help)"


def _as_package_error(error: LanceError | OSError) -> LanceError | OSError:
    """Return an error with our message. An OSError without a file name concerns the output."""
    if isinstance(error, LanceError):
        return error
    return local_failure(error, f"using {error.filename}" if error.filename else "writing the output")
