"""The command completion, which prints a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from spark_lance.cli.commands import COMPLETE, PROGRAM, Arguments
from spark_lance.cli.output import say


def completion(arguments: Arguments) -> int:
    """Print the completion script of a shell. The script asks this program for completions."""
    shell = get_completion_class(arguments.shell)
    assert shell is not None
    say(shell(click.Group(PROGRAM), {}, PROGRAM, COMPLETE).source())
    return 0
