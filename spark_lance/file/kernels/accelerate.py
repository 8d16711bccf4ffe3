"""Decides when compiled kernels replace the numpy kernels.

Loading numba takes about half a second per process, and two more seconds the first time on a machine, when
the kernels are compiled and cached on disk. A process that decodes little data would not benefit. So a
process adds up the time that compiled kernels would have saved, and loads them when it exceeds the loading
time. In the worst case this costs twice as much as the better choice.

The environment variable SPARK_LANCE_NUMBA overrides this: "off" never loads numba, "on" loads it at once and
fails if it is missing, "auto" is the default described above. It is read once per process.

numba caches compiled code next to this package if that folder is writable, in the user's cache, or in
NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from spark_lance.errors import OptionError

VARIABLE = "SPARK_LANCE_NUMBA"
_MODES = ("off", "auto", "on")
_LOG = logging.getLogger(__name__)

Kernel: TypeAlias = Callable[..., Any]

# Loading time in seconds.
START_COST = 0.5
# Time saved by a kernel, in seconds per input byte of its numpy version (FSST: codes; bit unpacking: values).
SAVED: Mapping[str, float] = {"fsst": 4.5e-9, "unpack": 0.3e-9}


class Accelerator:
    """Decides for one process, and holds the compiled kernels after loading them.

    Raises:
        OptionError: `mode` is not off, auto or on; or it is on and numba is not installed.
    """

    def __init__(self, mode: str) -> None:
        if mode not in _MODES:
            raise OptionError(f"{VARIABLE} is {mode!r}; it can be {', '.join(_MODES)}")
        self._mode = mode
        self._saved = 0.0
        self._lock = threading.Lock()
        self._kernels: Mapping[str, Kernel] | None = {} if mode == "off" else None

    def kernel(self, name: str, size: int) -> Kernel | None:
        """Return the compiled kernel `name` for an input of `size` bytes; None to use the numpy version."""
        if self._kernels is None:
            # Not locked: threads may lose updates, but this is only an estimate.
            self._saved += SAVED[name] * size
            if self._mode == "auto" and self._saved < START_COST:
                return None
            self._load()
        assert self._kernels is not None
        return self._kernels.get(name)

    def _load(self) -> None:
        with self._lock:
            if self._kernels is not None:
                return
            try:
                module = importlib.import_module("spark_lance.file.kernels.numba_kernels")
            except ImportError as error:
                if self._mode == "on":
                    raise OptionError(
                        f"{VARIABLE} is on, but numba cannot be used: pip install 'spark-lance[numba]'"
                    ) from error
                _LOG.debug("compiled kernels are not used: %s", error)
                self._kernels = {}
            else:
                self._kernels = module.KERNELS


_process: list[Accelerator] = []


def compiled(name: str, size: int) -> Kernel | None:
    """Return the compiled kernel `name` if this process already uses it, else None.

    Args:
        name: a key of `SAVED`.
        size: bytes of the current input, which count for the decision.

    Raises:
        OptionError: the environment variable is invalid, or requires numba and it is missing.
    """
    if not _process:
        _process.append(Accelerator(os.environ.get(VARIABLE, "auto").strip().lower() or "auto"))
    return _process[0].kernel(name, size)
