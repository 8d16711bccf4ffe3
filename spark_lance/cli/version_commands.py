"""The commands about names of versions: tags, branches, restore."""

from __future__ import annotations

from typing import Any

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table, reference_of
from spark_lance.cli.output import as_json, print_table, say
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.table.versions.resolve import Reference


def list_tags(arguments: Arguments) -> int:
    """Show the tags of a table."""
    return _show("tag", open_table(arguments).tags.list(), ("branch", "version"), arguments)


def create_tag(arguments: Arguments) -> int:
    """Give a version a name."""
    dataset = open_table(arguments)
    dataset.tags.create(arguments.name, _reference(arguments))
    return _said(arguments, f"tag {arguments.name}", dataset.tags.list()[arguments.name]["version"])


def update_tag(arguments: Arguments) -> int:
    """Move a tag to another version."""
    dataset = open_table(arguments)
    dataset.tags.update(arguments.name, _reference(arguments))
    return _said(arguments, f"tag {arguments.name}", dataset.tags.list()[arguments.name]["version"])


def delete_tag(arguments: Arguments) -> int:
    """Delete a tag; its version stays."""
    open_table(arguments).tags.delete(arguments.name)
    return _said(arguments, f"deleted tag {arguments.name}")


def list_branches(arguments: Arguments) -> int:
    """Show the branches of a table."""
    branches = open_table(arguments).branches.list()
    return _show("branch", branches, ("parent_branch", "parent_version"), arguments)


def create_branch(arguments: Arguments) -> int:
    """Begin a line of versions of its own."""
    dataset = open_table(arguments).create_branch(arguments.name, _reference(arguments))
    return _said(arguments, f"branch {arguments.name}", dataset.version)


def delete_branch(arguments: Arguments) -> int:
    """Delete a branch with the versions that are only on it."""
    open_table(arguments).branches.delete(arguments.name)
    return _said(arguments, f"deleted branch {arguments.name}")


def restore(arguments: Arguments) -> int:
    """Make the content of an old version the newest version."""
    dataset: LanceDataset = open_table(arguments)
    old = dataset.checkout_version(reference_of(arguments.to))
    return _said(arguments, f"restored version {old.version}", old.restore().version)


def _reference(arguments: Arguments) -> Reference | None:
    return None if arguments.to is None else reference_of(arguments.to)


def _show(
    kind: str, references: dict[str, dict[str, Any]], names: tuple[str, ...], arguments: Arguments
) -> int:
    if arguments.json:
        say(as_json(references))
    elif references:
        rows = [(name, *(each.get(column) or ("main" if "branch" in column else None) for column in names))
                for name, each in references.items()]  # fmt: skip
        print_table((kind, *(name.replace("_", " ") for name in names)), rows, wide=arguments.wide)
    else:
        say("none")
    return 0


def _said(arguments: Arguments, what: str, version: int | None = None) -> int:
    if arguments.json:
        say(as_json({"done": what, "version": version}))
    else:
        say(what if version is None else f"{what}: version {version}")
    return 0
