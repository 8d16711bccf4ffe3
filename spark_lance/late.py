"""Names of other modules that are imported when they are used, not before.

Whoever opens a table and looks at its first rows waits for every module that is loaded until then. So modules
that many programs load name what only some of their functions need like this:

    if TYPE_CHECKING:
        from spark_lance.table.rows.delete import delete_rows
    else:
        delete_rows = late("spark_lance.table.rows.delete", "delete_rows")

Type checkers and readers see the import, and `tests/test_layers.py` that both say the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Late", "late"]


class Late:
    """Stands for a function or a class: it can be called, has the attributes, and tells instances."""

    def __init__(self, module: str, name: str) -> None:
        self.__module, self.__name = module, name

    @property
    def __wrapped__(self) -> Any:
        """The imported object."""
        return getattr(import_module(self.__module), self.__name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call it."""
        return self.__wrapped__(*args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.__wrapped__)


def late(module: str, name: str) -> Any:
    """Return what stands for a function or a class of a module until it is used."""
    return Late(module, name)
