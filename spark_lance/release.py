"""The release of this package."""

from __future__ import annotations

RELEASE = "0.1.0"
