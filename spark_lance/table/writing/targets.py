"""The folders in which new data files are put: under the table's own root, or in base paths, in turns.

A base path is named by its name or by its path, as the manifest has it. (Lance table format, base paths.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_lance.errors import OptionError
from spark_lance.io.store import Store
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.paths import DATA_DIR
from spark_lance.table.format.table_ref import TableRef


@dataclass(frozen=True)
class FileTarget:
    """A folder for data files.

    Attributes:
        store, folder: where it is.
        base_id: of the base path; None for the table's own root.
    """

    store: Store
    folder: str
    base_id: int | None = None


def own_target(table: TableRef) -> FileTarget:
    """Return the folder of data files under a table's root."""
    return FileTarget(table.store, table.path(DATA_DIR))


def choose_targets(
    bases: Bases, names: Sequence[str] | None = None, every: bool | None = None
) -> tuple[FileTarget, ...]:
    """Return the folders that take new data files in turns.

    Args:
        bases: the places of the table.
        names: of base paths, or their paths; the table's own URI stands for its root. None or empty: the
            table's root alone.
        every: all base paths in place of `names`; true has the table's root as the first of them, too.

    Raises:
        OptionError: there is no such base path, or both are given, or there are no base paths.
        StoreError: a base path needs a driver that is not installed.
    """
    own = own_target(bases.table)
    if every is not None:
        if names:
            raise OptionError("give target_bases or target_all_bases, not both")
        others = tuple(_target(bases, number) for number in sorted(base.id for base in bases.others))
        if not others and not every:
            raise OptionError("the table has no base paths to write to")
        return (own, *others) if every else others
    targets = []
    roots = {bases.root, bases.store.uri(bases.root)}
    for name in [names] if isinstance(names, str) else names or ():
        matching = [base.id for base in bases.others if base.name == name]
        matching += [base.id for base in bases.others if name in (base.uri, base.path)]
        if matching:
            targets.append(_target(bases, matching[0]))
        elif name.rstrip("/") in roots:
            targets.append(own)
        else:
            base_names = ", ".join(repr(base.name or base.path) for base in bases.others) or "none"
            raise OptionError(f"base path {name!r} not found; the table has: {base_names}")
    return tuple(targets) or (own,)


def _target(bases: Bases, number: int) -> FileTarget:
    store, folder = bases.data_folder(number)
    return FileTarget(store, folder, number)
