"""How large data files become, unless a writer says otherwise."""

from __future__ import annotations

MAX_ROWS_PER_FILE = 1 << 20
MAX_BYTES_PER_FILE = 90 << 30
