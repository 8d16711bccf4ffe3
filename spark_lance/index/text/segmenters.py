"""SEGMENTERS: cuts of text that regular expressions cannot say: by n letters, by words of a dictionary.

A segmenter gives the tokens of texts and the text that each is in, ascending. Which are left out or changed
afterwards is the tokenizer's business.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, OptionError
from spark_lance.io.user_cache import user_cache

__all__ = ["MODEL_HOME", "SEGMENTERS", "jieba_tokens", "ngrams"]

# Names of a setting: the folder in which models of languages are, one folder per family.
MODEL_HOME = "LANCE_LANGUAGE_MODEL_HOME"


def ngrams(texts: pa.Array, shortest: int, longest: int, prefix_only: bool) -> tuple[pa.Array, Ints]:
    """Return all runs of `shortest` to `longest` letters of each text, those at its beginning only if asked.

    Texts are cut as they are, white space included.
    """
    present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    non_null = texts.drop_null()
    lengths = pc.utf8_length(non_null).to_numpy(zero_copy_only=False).astype(np.int64)
    letters = np.frombuffer("".join(non_null.to_pylist()).encode("utf-32-le"), "<u4")
    ends = np.cumsum(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    first = np.repeat(ends - lengths, lengths)
    tokens: list[pa.Array] = [pa.array([], pa.string())]
    owners: list[Ints] = [np.empty(0, np.int64)]
    for size in range(shortest, longest + 1):
        starts = np.arange(max(len(letters) - size + 1, 0))
        inside = starts + size <= ends[owner[: len(starts)]]
        if prefix_only:
            inside &= starts == first[: len(starts)]
        starts = starts[inside]
        if not len(starts):
            continue
        runs = np.lib.stride_tricks.sliding_window_view(letters, size)[starts]
        distinct, numbers = np.unique(runs, axis=0, return_inverse=True)
        words = pa.array([row.tobytes().decode("utf-32-le") for row in distinct], pa.string())
        tokens.append(words.take(pa.array(numbers.reshape(-1))))
        owners.append(owner[starts])
    where = np.concatenate(owners)
    order = np.argsort(where, kind="stable")
    return pa.concat_arrays(tokens).take(pa.array(order)), present[where[order]]


def jieba_tokens(texts: pa.Array, model: str) -> tuple[pa.Array, Ints]:
    """Return the Chinese words of each text, those inside of longer ones too, by the package `jieba`.

    Args:
        texts: the texts.
        model: a folder under `jieba` of the folder of models: `config.json` names the dictionary (`main`) and
            those of users (`users`); `dict.txt` without one. The package's own dictionary if there is no such
            folder and the model is `default`.

    Raises:
        OptionError: the package is not installed, or there is no such model.
        FormatError: a dictionary is damaged.
    """
    cut = _jieba(model, os.environ.get(MODEL_HOME)).tokenize
    tokens: list[str] = []
    owners: list[int] = []
    for number, text in enumerate(texts.to_pylist()):
        words = [] if text is None else [word for word, _, _ in cut(text, mode="search")]
        tokens += words
        owners += [number] * len(words)
    return pa.array(tokens, pa.string()), np.array(owners, np.int64)


@lru_cache(maxsize=8)
def _jieba(model: str, home: str | None) -> Any:
    # Only indices of Chinese text need it.
    try:
        jieba = import_module("jieba")
    except ImportError as error:
        raise OptionError(
            "text cut by jieba needs the package jieba: pip install 'spark-lance[jieba]'"
        ) from error
    jieba.setLogLevel(logging.WARNING)
    folder = _model_folder("jieba", model, home)
    if folder is None:
        return _tokenizer(jieba)
    config: Mapping[str, Any] = {}
    if (folder / "config.json").exists():
        config = json.loads((folder / "config.json").read_text("utf-8"))
    main = config.get("main") or ("dict.txt" if (folder / "dict.txt").exists() else None)
    paths = [folder / name for name in [*([main] if main else []), *(config.get("users") or ())]]
    for path in paths:
        if not path.is_file():
            raise OptionError(f"the model jieba/{model} has no dictionary {path}")
    try:
        tokenizer = _tokenizer(jieba, *paths[:1] if main else ())
        for path in paths[1 if main else 0 :]:
            with path.open("rb") as words:
                tokenizer.load_userdict(words)
        tokenizer.initialize()
    except (ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"a dictionary of jieba/{model} is damaged: {error}", str(folder)) from error
    return tokenizer


def _tokenizer(jieba: Any, *dictionary: Path) -> Any:
    """Return a tokenizer that keeps its parsed dictionary in a folder of this user, which it unmarshals.

    By default that is a file in a folder that all users can write.
    """
    tokenizer = jieba.Tokenizer(*map(str, dictionary))
    tokenizer.tmp_dir = str(user_cache("jieba"))
    return tokenizer


def _model_folder(family: str, model: str, home: str | None) -> Path | None:
    """Return the folder of a model; None stands for what the package brings itself.

    Raises:
        OptionError: there is no such model.
    """
    base = Path(home) if home else _data_home() / "lance" / "language_models"
    folder = base / family / model
    if folder.is_dir():
        return folder
    if model == "default" and not home:
        return None
    raise OptionError(
        f"there is no model {family}/{model} in {base}: set {MODEL_HOME} to the folder of models"
    )


def _data_home() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home()))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))


# Family of a base tokenizer -> tokens of texts by the model that stands behind its slash.
SEGMENTERS: Mapping[str, Callable[[pa.Array, str], tuple[pa.Array, Ints]]] = {"jieba": jieba_tokens}
