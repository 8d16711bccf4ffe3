"""From the arguments of a command to a table."""

from __future__ import annotations

import argparse
import json
from typing import Any

from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import OptionError

__all__ = ["open_table", "storage_options"]


def open_table(arguments: argparse.Namespace) -> LanceDataset:
    """Open the version that a command is about: the newest one if nothing else is said.

    Raises:
        OptionError: arguments do not go together.
        TableNotFoundError, VersionNotFoundError: there is no such table or version.
        FormatError, UnsupportedFormatError: it cannot be read.
    """
    options = storage_options(arguments.storage)
    version = getattr(arguments, "version", None)
    if arguments.branch is not None:
        if version is not None and not version.isdecimal():
            raise OptionError("a tag says itself on which branch it is: give no --branch")
        place = (arguments.branch, None if version is None else int(version))
        return dataset(arguments.path, place, options)
    if version is not None and version.isdecimal():
        return dataset(arguments.path, int(version), options)
    return dataset(arguments.path, version, options)


def storage_options(given: list[str]) -> dict[str, Any]:
    """Return storage options from texts such as `aws_region=eu-central-1`; JSON values are parsed.

    Raises:
        OptionError: a text is not of this form.
    """
    options: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise OptionError(f"--storage takes NAME=VALUE, not {text!r}")
        try:
            parsed = json.loads(value) if value.lstrip().startswith(("{", "[")) else value
        except ValueError:
            raise OptionError(f"--storage {name}: {value!r} looks like JSON but is not") from None
        options[name] = {"true": True, "false": False}.get(value.lower(), parsed)
    return options
