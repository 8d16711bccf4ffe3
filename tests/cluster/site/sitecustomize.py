"""Python runs this when it starts, if this folder is in PYTHONPATH: see `tests.cluster.stops`."""

from __future__ import annotations

from tests.cluster.stops import install

install()
