"""A call of every command of the table of commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spark_lance.cli.commands import COMMANDS, Command

# What commands need beside a table.
NEEDED = {
    "sql": ["SELECT 1"],
    "diff": ["1"],
    "tags create": ["name"],
    "tags update": ["name"],
    "tags delete": ["name"],
    "branches create": ["name"],
    "branches delete": ["name"],
    "restore": ["1"],
    "index build": ["id", "BTREE"],
    "index drop": ["name"],
    "export": ["rows.csv"],
    "search": ["--text", "x"],
}
# Commands that open no table, or make one.
OTHERS = {"completion", "convert", "import"}


def command_names() -> list[str]:
    """Return the names of all commands, with that of their group."""
    results = []
    for commands in COMMANDS.values():
        for name, each in commands.items():
            results += [name] if isinstance(each, Command) else [f"{name} {part}" for part in each.commands]
    return results


def every_command(table: str, folder: Path) -> Iterator[list[str]]:
    """Yield the words of a call of every command that opens a table; files are written into a folder."""
    for name in command_names():
        if name not in OTHERS:
            needed = [str(folder / word) if word == "rows.csv" else word for word in NEEDED.get(name, [])]
            yield [*name.split(), table, *needed]
