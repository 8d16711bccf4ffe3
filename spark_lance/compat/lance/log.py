"""Logging under pylance's names."""

from __future__ import annotations

import logging
import os

__all__ = ["ENV_NAME_PYLANCE_LOGGING_LEVEL", "LOGGER", "get_log_level", "set_logger"]

ENV_NAME_PYLANCE_LOGGING_LEVEL = "LANCE_LOG"


def get_log_level() -> str:
    """Return the level for everything that the environment variable LANCE_LOG names; INFO by default."""
    setting = os.environ.get(ENV_NAME_PYLANCE_LOGGING_LEVEL, "")
    plain = [part for part in setting.split(",") if part and "=" not in part]
    return plain[0].upper() if plain else "INFO"


LOGGER = logging.getLogger("pylance")
LOGGER.setLevel(get_log_level() if isinstance(logging.getLevelName(get_log_level()), int) else "INFO")


def set_logger(
    file_path: str | None = "pylance.log",
    name: str = "pylance",
    level: int = logging.INFO,
    format_string: str | None = None,
    log_handler: logging.Handler | None = None,
) -> None:
    """Let a handler write what is logged, by default to a file."""
    handler = log_handler or logging.FileHandler(file_path or "pylance.log")
    handler.setLevel(level)
    handler.setFormatter(
        logging.Formatter(
            format_string or "%(asctime)s %(name)s [%(levelname)s] %(filename)s:%(lineno)d: %(message)s"
        )
    )
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.addHandler(handler)
