"""Packages that may be there or not, by pylance's names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = [
    "_NUMPY_AVAILABLE",
    "_PANDAS_AVAILABLE",
    "_TORCH_AVAILABLE",
    "_check_for_torch",
    "numpy",
    "pandas",
    "torch",
]


class _Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


numpy, pandas, torch = _Later("numpy"), _Later("pandas"), _Later("torch")
_NUMPY_AVAILABLE = True
_PANDAS_AVAILABLE = find_spec("pandas") is not None
_TORCH_AVAILABLE = find_spec("torch") is not None


def _check_for_torch(obj: Any) -> bool:  # noqa: ARG001
    return find_spec("torch") is not None
