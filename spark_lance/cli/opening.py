"""Open the table of a command's arguments."""

from __future__ import annotations

import json
from typing import Any

from spark_lance.cli.commands import Arguments
from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import OptionError
from spark_lance.io.base_options import ALLOWED_BASES


def open_table(arguments: Arguments) -> LanceDataset:
    """Open the version that the arguments select; the newest by default.

    Raises:
        OptionError: arguments conflict.
        TableNotFoundError, VersionNotFoundError: the table or version does not exist.
        FormatError, UnsupportedFormatError: the table cannot be read.
    """
    options = storage_options(arguments)
    version = getattr(arguments, "version", None)
    asof = getattr(arguments, "asof", None)
    if asof is not None:
        if version is not None or arguments.branch is not None:
            raise OptionError("--asof works on the main branch only: leave out --version and --branch")
        return dataset(arguments.path, storage_options=options, asof=asof)
    if arguments.branch is not None:
        if version is not None and not version.isdecimal():
            raise OptionError("a tag already names its branch: leave out --branch")
        place = (arguments.branch, None if version is None else int(version))
        return dataset(arguments.path, place, options)
    return dataset(arguments.path, None if version is None else parse_reference(version), options)


def parse_reference(text: str) -> int | str:
    """Return a version argument as a number, or as a tag if it is not a number."""
    return int(text) if text.isdecimal() else text


def parse_columns(arguments: Arguments) -> list[str] | None:
    """Return the columns of `--columns`; None for all.

    Raises:
        OptionError: the list is empty.
    """
    if arguments.columns is None:
        return None
    names = [name.strip() for name in arguments.columns.split(",") if name.strip()]
    if not names:
        raise OptionError("--columns takes column names separated by commas")
    return names


def storage_options(arguments: Arguments) -> dict[str, Any]:
    """Return the storage options of a command, parsed from `--storage NAME=VALUE`.

    Values that are JSON objects or lists are parsed.

    Raises:
        OptionError: an option is not NAME=VALUE, or its JSON is invalid.
    """
    options: dict[str, Any] = {}
    if allowed := getattr(arguments, "allowed_bases", None):
        options[ALLOWED_BASES] = list(allowed)
    for text in arguments.storage:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise OptionError("--storage takes NAME=VALUE, but one value has no NAME or no =")
        try:
            parsed = json.loads(value) if value.lstrip().startswith(("{", "[")) else value
        except ValueError:
            raise OptionError(
                f"--storage {name}: the value starts like JSON, but is not valid JSON"
            ) from None
        options[name] = {"true": True, "false": False}.get(value.lower(), parsed)
    return options
