"""The command that draws a table, besides showing it: inspect."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from spark_lance.cli.html_page import html_page
from spark_lance.cli.inspect_commands import inspect as show
from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, say, unwritten
from spark_lance.io.progress import reporting

__all__ = ["inspect"]


def inspect(arguments: Arguments) -> int:
    """Show a table, or write a page about it."""
    if arguments.html is None:
        return show(arguments)
    dataset = open_table(arguments)
    release: str = import_module(__name__.partition(".")[0]).__version__
    with Progress("looking into files") as progress, reporting(progress):
        text = html_page(dataset, release)
    try:
        Path(arguments.html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritten(arguments.html, error) from error
    say(f"wrote {arguments.html}")
    return 0
