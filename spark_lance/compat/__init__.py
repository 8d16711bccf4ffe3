"""Drop-in replacements for other packages.

`import spark_lance.compat.lance as lance` imports a module with pylance's names, arguments and results,
including datasets that change in place. It does not use pylance. `install` also redirects `import lance`, for
libraries that import it themselves:

    from spark_lance.compat import install
    install()
    import lance_ray            # its `import lance` imports spark_lance.compat.lance
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install"]

_THEIRS, _OURS = "lance", "spark_lance.compat.lance"


class _Alias(MetaPathFinder, Loader):
    """An importer that finds `lance` and its submodules in this package."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 (signature of the protocol)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a submodule of `lance`; None for other or missing modules."""
        if fullname != _THEIRS and not fullname.startswith(f"{_THEIRS}."):
            return None
        spec = find_spec(_OURS + fullname[len(_THEIRS) :])
        if spec is None:
            return None
        return ModuleSpec(fullname, self, is_package=spec.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the original module, so that both names refer to the same classes."""
        return import_module(_OURS + spec.name[len(_THEIRS) :])

    def exec_module(self, module: ModuleType) -> None:  # noqa: ARG002
        """Register the loaded modules under their second names. The module has already run.

        The import system would bind a submodule that it loads by that name in its package, and
        `lance.dataset` is a function there.
        """
        for name, loaded in list(sys.modules.items()):
            if name.startswith(f"{_OURS}."):
                sys.modules.setdefault(_THEIRS + name[len(_OURS) :], loaded)


def install() -> None:
    """Make `import lance` import `spark_lance.compat.lance` in this process.

    Raises:
        RuntimeError: another module `lance` is already loaded.
    """
    loaded = sys.modules.get(_THEIRS)
    if loaded is not None and not getattr(loaded, "__name__", "").startswith(_OURS):
        raise RuntimeError(
            f"another module {_THEIRS!r} is loaded, from {getattr(loaded, '__file__', None)}: call install() "
            "before anything imports it"
        )
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias())
