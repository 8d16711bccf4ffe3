"""Tokenizer: split text into the words to index.

    1  split at all characters except letters and numbers (simple), at white space, or not at all (raw);
       into all runs of n letters (ngram), or into the words of a dictionary (jieba/model)
    2  drop words of `max_token_length` bytes or more
    3  lower case, 4 stemming, 5 drop stop words, 6 replace accented letters by ASCII letters

in this order, each step if the index enables it. (Lance index format, inverted: params.)

The words of JSON documents are triples of each value and its path:

    path,type,word      type is str, number, bool or null; word is a word of the text, or the value as JSON

A path is the keys joined by dots. Items of arrays have the path of the array. A document that is not a
container has an empty path. `{"a":{"b":["red fish",7]},"c":null}` has the words `a.b,str,red`,
`a.b,str,fish`, `a.b,number,7` and `c,null,null`. Values are in document order; keys are sorted.

A query is one triple, whose text can have several words, or several triples separated by semicolons:
`a.b,str,red fish;c,null,null`. Keys with commas cannot be searched. (Lance index format, inverted:
lance_tokenizer "json".)

`SEGMENTERS` has the tokenizers that use a dictionary. A segmenter returns the tokens of texts and the text of
each token, ascending. The tokenizer then filters and changes the tokens.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import flags_to_numpy, numbers_to_arrow, numbers_to_numpy, texts_to_arrow
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, OptionError, UnsupportedFormatError
from spark_lance.index.text.lists import is_text, joined_texts
from spark_lance.index.text.stop_words import LANGUAGES, stop_words
from spark_lance.io.stored_json import parse_object
from spark_lance.io.user_cache import user_cache
from spark_lance.jsonb.binary import decode_strings, to_json_texts
from spark_lance.jsonb.values import CONTAINER, FALSE, MISSING, NULL, NUMBER, STRING, TRUE, JsonValues
from spark_lance.proto import index_pb2

# Environment variable: the folder of language models, with one folder per family.
MODEL_HOME = "LANCE_LANGUAGE_MODEL_HOME"


def ngrams(texts: pa.Array, shortest: int, longest: int, prefix_only: bool) -> tuple[pa.Array, Ints]:
    """Return all runs of `shortest` to `longest` letters of each text, and the text of each run.

    Runs include white space. With `prefix_only`, only runs at the beginning of a text are returned.
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
    """Return the Chinese words of each text, including words inside longer ones, by the package `jieba`.

    Args:
        texts: the texts.
        model: a folder below `jieba` in the folder of models. Its `config.json` names the dictionary (`main`)
            and user dictionaries (`users`); without it, `dict.txt` is used. If there is no such folder, the
            model `default` uses the package's own dictionary.

    Raises:
        OptionError: the package is not installed, or the model does not exist.
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
    # Imported here, because only indexes of Chinese text need it.
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
    """Return a jieba tokenizer that caches its parsed dictionary in a folder of this user.

    jieba unmarshals the cache, and by default keeps it in a folder that all users can write.
    """
    tokenizer = jieba.Tokenizer(*map(str, dictionary))
    tokenizer.tmp_dir = str(user_cache("jieba"))
    return tokenizer


def _model_folder(family: str, model: str, home: str | None) -> Path | None:
    """Return the folder of a model; None for the package's own dictionary.

    Raises:
        OptionError: the model does not exist.
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


# Family of a base tokenizer (the part before the slash) -> segmenter, called with the model.
SEGMENTERS: Mapping[str, Callable[[pa.Array, str], tuple[pa.Array, Ints]]] = {"jieba": jieba_tokens}


# Returns the words of texts, the text of each word, and the number of words before it.
Cut = Callable[[pa.Array], tuple[pa.Array, Ints, Ints]]
# Words, the document of each word, and its position in the document.
Triples = tuple[pa.Array, Ints, Ints]

_TYPES = {NUMBER: "number", TRUE: "bool", FALSE: "bool", NULL: "null"}
_TEXT = "str"
_MAX_DEPTH = 130
# Number of words whose indexed forms a tokenizer keeps.
_MAX_FORMS = 1 << 17


def document_triples(documents: pa.Array, cut: Cut) -> Triples:
    """Return the words of stored JSON documents, in document order.

    Args:
        documents: stored documents; nulls have no words.
        cut: splits texts into words.

    Raises:
        FormatError, UnsupportedFormatError: a document is damaged, or has an unknown kind of value.
    """
    owners, path, paths, values = _leaves(JsonValues.of(documents))
    is_text = values.kinds == STRING
    texts, others = np.flatnonzero(is_text), np.flatnonzero(~is_text)
    words, text, within = cut(decode_strings(values.take(texts)))
    labels = pa.array([_TYPES.get(kind) for kind in range(CONTAINER)]).take(
        pa.array(values.kinds[others].astype(np.int64))
    )
    triples = pa.concat_arrays(
        [
            _join_triples(paths, path[texts[text]], pa.array([_TEXT] * len(words), pa.string()), words),
            _join_triples(paths, path[others], labels.cast(pa.string()), to_json_texts(values.take(others))),
        ]
    )
    leaf = np.concatenate([texts[text], others])
    place = np.concatenate([within, np.zeros(len(others), np.int64)])
    order = np.argsort(leaf, kind="stable")
    # The words of a value have higher positions than the words of the values before it.
    spans = np.where(is_text, 0, 1)
    np.maximum.at(spans, texts[text], within + 1)
    begins = np.cumsum(spans) - spans
    firsts = begins[np.searchsorted(owners, owners)]
    return triples.take(pa.array(order)), owners[leaf][order], (place + (begins - firsts)[leaf])[order]


def _join_triples(paths: pa.Array, path: Ints, types: pa.Array, words: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(paths.take(pa.array(path)), types, words, ",")


def _leaves(documents: JsonValues) -> tuple[Ints, Ints, pa.Array, JsonValues]:
    """Return all scalar values: their documents, path numbers, all paths, and the values."""
    owners = np.flatnonzero(documents.kinds != MISSING)
    nodes = documents.take(owners)
    path, paths = np.zeros(len(nodes), np.int64), pa.array([""], pa.string())
    for _ in range(_MAX_DEPTH):
        inner = nodes.kinds == CONTAINER
        if not bool(inner.any()):
            is_leaf = np.isin(nodes.kinds, (STRING, *_TYPES))
            if not bool(is_leaf.all()):
                raise UnsupportedFormatError(f"a JSON value of kind {int(nodes.kinds[~is_leaf][0])}")
            return owners, path, paths, nodes
        children = nodes.children()
        below = path[children.owners]
        string_keys = np.flatnonzero(children.keys.kinds == STRING)
        if len(string_keys):
            below[string_keys], paths = _append_keys(
                paths, below[string_keys], decode_strings(children.keys.take(string_keys))
            )
        outer = np.flatnonzero(~inner)
        parents = np.concatenate([outer, children.owners])
        # The values of a container replace it in the order.
        order = np.argsort(parents, kind="stable")
        nodes = nodes.take(outer).joined(children.values).take(order)
        owners, path = owners[parents][order], np.concatenate([path[outer], below])[order]
    raise UnsupportedFormatError(f"a JSON value that is nested more than {_MAX_DEPTH} levels deep")


def _append_keys(paths: pa.Array, path: Ints, keys: pa.Array) -> tuple[Ints, pa.Array]:
    """Append a key to each path; return the new path numbers, and all paths."""
    encoded = keys.dictionary_encode()
    names = encoded.dictionary
    pairs, back = np.unique(path * len(names) + encoded.indices.to_numpy(), return_inverse=True)
    before, last = paths.take(pa.array(pairs // len(names))), names.take(pa.array(pairs % len(names)))
    longer = pc.if_else(pc.equal(before, ""), last, pc.binary_join_element_wise(before, last, "."))
    return len(paths) + back.reshape(-1).astype(np.int64), pa.concat_arrays([paths, longer])


def query_triples(query: str, cut: Cut) -> Triples:
    """Return the words of a query for JSON documents, as words of one document.

    Raises:
        OptionError: a part of the query is not a triple of path, type and value.
    """
    words: list[str] = []
    places: list[Any] = []
    for triple in query.split(";"):
        path, *rest = triple.split(",", 2)
        if len(rest) < 2 or rest[0] not in (_TEXT, *_TYPES.values()):
            raise OptionError(
                f"a search in JSON documents looks for path,type,value, such as a.b,str,words (types: "
                f"{_TEXT}, number, bool, null; several with semicolons between), not for {triple!r}"
            )
        begin = max(places, default=-1) + 1
        if rest[0] == _TEXT:
            tokens, _, within = cut(pa.array([rest[1]]))
            words += [f"{path},{_TEXT},{word}" for word in tokens.to_pylist()]
            places += (within + begin).tolist()
        else:
            words.append(triple)
            places.append(begin)
    return pa.array(words, pa.string()), np.zeros(len(words), np.int64), np.array(places, np.int64)


# Alphabetic characters of Unicode 17 besides letters and numbers, as ranges of hexadecimal numbers: vowel
# signs, letters in circles, and letters that RE2's older tables lack. Accents such as U+0301 are not
# alphabetic: as in other engines, "e\u0301te" has two words, and "\u00e9te" has one.
_ALPHABETIC = (
    "345 363-36f 5b0-5bd 5bf 5c1-5c2 5c4-5c5 5c7 610-61a 64b-657 659-65f 670 6d6-6dc 6e1-6e8 6ed "
    "711-73f 7a6-7b0 816-817 81b-82c 88f 897 8d4-8df 8e3-8e9 8f0-93b 93e-94c 94e-94f 955-963 981-983 "
    "9be-9c4 9c7-9c8 9cb-9cc 9d7 9e2-9e3 a01-a03 a3e-a42 a47-a48 a4b-a4c a51 a70-a75 a81-a83 abe-ac5 "
    "ac7-ac9 acb-acc ae2-ae3 afa-afc b01-b03 b3e-b44 b47-b48 b4b-b4c b56-b57 b62-b63 b82 bbe-bc2 "
    "bc6-bc8 bca-bcc bd7 c00-c04 c3e-c44 c46-c48 c4a-c4c c55-c56 c5c c62-c63 c81-c83 cbe-cc4 cc6-cc8 "
    "cca-ccc cd5-cd6 cdc ce2-ce3 cf3 d00-d03 d3e-d44 d46-d48 d4a-d4c d57-d63 d81-d83 dcf-dd4 dd6 "
    "dd8-ddf df2-df3 e31-e3a e4d eb1-eb9 ebb-ebc ecd f71-f83 f8d-f97 f99-fbc 102b-1036 1038 103b-103e "
    "1056-109d 1712-1713 1732-1733 1752-1753 1772-1773 17b6-17c8 1885-18a9 1920-192b 1930-1938 "
    "1a17-1a1b 1a55-1a5e 1a61-1a74 1abf-1ac0 1acc-1ace 1b00-1b04 1b35-1b43 1b80-1ba9 1bac-1bad "
    "1be7-1bf1 1c24-1c36 1c89-1c8a 1dd3-1df4 24b6-24e9 2de0-2dff a674-a67b a69e-a69f a7cb-a7dc "
    "a7f1-a802 a80b-a827 a880-a8c3 a8c5 a8ff-a92a a947-a952 a980-a983 a9b4-a9bf a9e5 aa29-aa36 "
    "aa43-aa4d aa7b-aabe aaeb-aaef aaf5 abe3-abea fb1e 10376-1037a 105c0-105f3 10940-10959 10a01-10a03 "
    "10a05-10a06 10a0c-10a0f 10d24-10d27 10d40-10d65 10d69 10d6f-10d85 10eab-10eac 10ec2-10ec7 "
    "10efa-10efc 11000-11045 11073-11074 11080-110b8 110c2 11100-11132 11145-11146 11180-111bf "
    "111ce-111cf 1122c-11234 11237 1123e-11241 112df-112e8 11300-11303 1133e-11344 11347-11348 "
    "1134b-1134c 11357 11362-11363 11380-11389 1138b 1138e 11390-113b5 113b7-113c0 113c2 113c5 "
    "113c7-113ca 113cc-113cd 113d1 113d3 11435-11441 11443-11445 114b0-114c1 115af-115b5 115b8-115be "
    "115dc-115dd 11630-1163e 11640 116ab-116b5 116d0-116e3 1171d-1172a 1182c-11838 11930-11935 "
    "11937-11938 1193b-1193c 11940-11942 119d1-119d7 119da-119df 119e4 11a01-11a0a 11a35-11a3e "
    "11a51-11a97 11b60-11b67 11bc0-11be0 11bf0-11bf9 11c2f-11c36 11c38-11c3e 11c92-11ca7 11ca9-11cb6 "
    "11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d41 11d43 11d47 11d8a-11d8e 11d90-11d91 11d93-11d96 "
    "11db0-11ddb 11de0-11de9 11ef3-11ef6 11f00-11f03 11f34-11f3a 11f3e-11f40 13460-143fa 16100-1612e "
    "16130-16139 16d40-16d6c 16d70-16d79 16ea0-16eb8 16ebb-16ed3 16f4f-16f87 16f8f-16f92 16ff0-16ff6 "
    "187f8-187ff 18cff-18d1e 18d80-18df2 1bc9e 1ccf0-1ccf9 1e000-1e006 1e008-1e018 1e01b-1e021 "
    "1e023-1e024 1e026-1e02a 1e08f 1e5d0-1e5ed 1e5f0-1e5fa 1e6c0-1e6de 1e6e0-1e6f5 1e6fe-1e6ff 1e947 "
    "1f130-1f149 1f150-1f169 1f170-1f189 2b73a-2b73f 2cea2-2cead 323b0-33479 "
)


def _class_of_ranges(ranges: str) -> str:
    """Return ranges of hexadecimal numbers as a part of a character class of RE2."""
    return "".join("-".join(f"\\x{{{end}}}" for end in item.split("-")) for item in ranges.split())


# Separators: for "simple", everything except letters, numbers and other alphabetic characters.
_BREAKS = {"simple": rf"[^\pL\pN{_class_of_ranges(_ALPHABETIC)}]+", "whitespace": r"\s+"}
# The same for ASCII texts.
_ASCII_BREAKS = {"simple": r"[^0-9A-Za-z]+", "whitespace": r"[\t\n\f\r ]+"}
_LAST_ASCII = 0x7F


def _word_bytes(pattern: str) -> npt.NDArray[np.bool_]:
    """Return for each byte whether it is inside of words; those beyond ASCII are not."""
    inside = [byte <= _LAST_ASCII and not re.fullmatch(pattern, chr(byte)) for byte in range(256)]
    return np.array(inside, np.bool_)


_WORD_BYTES = {base: _word_bytes(pattern) for base, pattern in _ASCII_BREAKS.items()}
# Parameters with the same names in the manifest entry and in the file.
_SHARED_PARAMS = (
    "with_position", "lower_case", "stem", "remove_stop_words", "ascii_folding", "min_ngram_length",
    "max_ngram_length", "prefix_only",
)  # fmt: skip
# Letters that Unicode does not decompose to ASCII, with both cases.
_SPECIAL = {
    "\u00df": "ss", "\u1e9e": "SS", "\u00e6": "ae", "\u00c6": "AE", "\u0153": "oe", "\u0152": "OE",
    "\u00f8": "o", "\u00d8": "O", "\u0142": "l", "\u0141": "L", "\u0140": "l", "\u013f": "L", "\u0111":
    "d", "\u0110": "D", "\u00f0": "d", "\u00d0": "D", "\u00fe": "th", "\u00de": "TH", "\u0131": "i",
    "\u0138": "k", "\u014b": "n", "\u014a": "N", "\u0149": "n", "\u0127": "h", "\u0126": "H", "\u0167":
    "t", "\u0166": "T", "\u2044": "", "\u1d2d": "AE", "\u01ff": "o", "\u01fe": "O", "\u01fd": "ae",
    "\u01fc": "AE", "\u01e3": "ae", "\u01e2": "AE", "\u1e9a": "a",
}  # fmt: skip


@dataclass(frozen=True)
class Tokens:
    """The words of some texts, one entry per occurrence.

    Attributes:
        distinct: the distinct words.
        word: index of each occurrence's word in `distinct`.
        text: index of each occurrence's text, ascending.
        position: number of words before each occurrence in its text, including dropped words.
    """

    distinct: pa.Array
    word: npt.NDArray[np.int64]
    text: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer parameters of an index.

    Attributes:
        base: "simple", "whitespace", "raw", "ngram", or a model of `SEGMENTERS`, such as "jieba/default".
        language: language of stemming and stop words.
        max_length: words of this many bytes or more are dropped; None keeps all.
        lower, stem, stops, fold: whether to lowercase, stem, drop stop words, and fold to ASCII.
        own_stops: stop words instead of the language's; None for the language's.
        positions: whether the index stores word positions.
        shortest, longest, prefix_only: for "ngram": minimum and maximum letters of a run, and whether only
            runs at the beginning of a text count.
        documents: whether values are JSON documents.
    """

    base: str = "simple"
    language: str = "English"
    max_length: int | None = 40
    lower: bool = True
    stem: bool = True
    stops: bool = True
    fold: bool = True
    own_stops: tuple[str, ...] | None = None
    positions: bool = False
    shortest: int = 3
    longest: int = 3
    prefix_only: bool = False
    documents: bool = False

    def __post_init__(self) -> None:
        if self.base not in (*_BREAKS, "raw", "ngram") and self._model is None:
            names = ", ".join([*_BREAKS, "raw", "ngram", *(f"{family}/model" for family in SEGMENTERS)])
            raise UnsupportedFormatError(f"text cut by {self.base!r}: here are {names}")
        if not 1 <= self.shortest <= self.longest:
            raise UnsupportedFormatError(
                f"runs of {self.shortest} to {self.longest} letters: at least 1, and the longest not shorter"
            )
        if (self.stem or self.stops) and self.language not in LANGUAGES:
            raise UnsupportedFormatError(f"text in {self.language!r}: here are {', '.join(LANGUAGES)}")

    @classmethod
    def of(cls, text: str) -> Tokenizer:
        """Return the tokenizer of an index's JSON parameters.

        Raises:
            FormatError: the parameters are malformed.
            UnsupportedFormatError: the parameters use an unsupported feature.
        """
        try:
            params = parse_object(text)
            unsupported = [key for key in ("split_identifiers", "split_on_numerics") if params.get(key)]
            values = params.get("lance_tokenizer")
            if unsupported or values not in ("text", "json", None):
                raise UnsupportedFormatError("an index of text that is cut in an unknown way")
            own_stops = params.get("custom_stop_words")
            return cls(
                base=params.get("base_tokenizer", "simple"),
                language=params.get("language", "English"),
                max_length=params.get("max_token_length"),
                lower=bool(params.get("lower_case", True)),
                stem=bool(params.get("stem", False)),
                stops=bool(params.get("remove_stop_words", False)),
                fold=bool(params.get("ascii_folding", False)),
                own_stops=None if own_stops is None else tuple(own_stops),
                positions=bool(params.get("with_position", False)),
                shortest=int(params.get("min_ngram_length", 3)),
                longest=int(params.get("max_ngram_length", 3)),
                prefix_only=bool(params.get("prefix_only", False)),
                documents=values == "json",
            )
        except (ValueError, AttributeError, TypeError) as error:
            raise FormatError(f"malformed parameters of an index of text: {error}") from error

    def params(self) -> dict[str, Any]:
        """Return the parameters by their names in index files."""
        return {
            "lance_tokenizer": "json" if self.documents else "text",
            "base_tokenizer": self.base,
            "language": self.language,
            "with_position": self.positions,
            "max_token_length": self.max_length,
            "lower_case": self.lower,
            "stem": self.stem,
            "remove_stop_words": self.stops,
            "custom_stop_words": None if self.own_stops is None else list(self.own_stops),
            "ascii_folding": self.fold,
            "min_ngram_length": self.shortest,
            "max_ngram_length": self.longest,
            "prefix_only": self.prefix_only,
        }

    def details(self, block: int, version: int) -> bytes:
        """Return the encoded details message for the manifest entry of an index.

        Args:
            block: documents per block of a posting list.
            version: format version of the posting lists.
        """
        params = self.params()
        message = index_pb2.InvertedIndexDetails(
            base_tokenizer=self.base,
            language=json.dumps(self.language),
            max_token_length=self.max_length,
            block_size=block,
            posting_format_version=version,
            **{name: params[name] for name in _SHARED_PARAMS},
        )
        return message.SerializeToString()

    def tokenize(self, values: pa.Array) -> Tokens:
        """Return the words of strings, lists of strings, or JSON documents. Nulls have no words."""
        if self.documents:
            return _tokens(*document_triples(values, self._words))
        return self._cut(values if is_text(values.type) else joined_texts(values))

    def cut_query(self, query: str) -> Tokens:
        """Return the words of a query.

        Raises:
            OptionError: the query is for JSON documents, and malformed.
        """
        if self.documents:
            return _tokens(*query_triples(query, self._words))
        return self._cut(texts_to_arrow([query], pa.string()))

    @property
    def has_ordinal_positions(self) -> bool:
        """Whether a word's position is the number of words before it, as in all writers."""
        return self.base in _BREAKS and not self.documents

    def _words(self, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        tokens = self._cut(texts)
        return tokens.distinct.take(numbers_to_arrow(tokens.word)), tokens.text, tokens.position

    def _cut(self, texts: pa.Array) -> Tokens:
        if self.base == "raw":
            tokens = texts.drop_null()
            owners = np.flatnonzero(flags_to_numpy(texts.is_valid()))
        elif self.base == "ngram":
            tokens, owners = ngrams(texts, self.shortest, self.longest, self.prefix_only)
        elif self._model is not None:
            family, model = self._model
            tokens, owners = SEGMENTERS[family](texts, model)
        else:
            tokens, owners = _split_words(texts, self.base)
        encoded = pc.dictionary_encode(tokens)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        numbers = numbers_to_numpy(encoded.indices).astype(np.int64)
        distinct_words = encoded.dictionary.to_pylist()
        if self.base == "ngram":
            positions = np.zeros(len(numbers), np.int64)  # All runs have the same position.
        else:
            positions = _positions(numbers, distinct_words.index("") if "" in distinct_words else -1, owners)
        places, terms = self._number_terms(distinct_words)
        numbers = places[numbers] if len(numbers) else numbers
        if not len(places) or places.min() >= 0:
            return Tokens(terms, numbers, owners, positions)
        there = numbers >= 0
        return Tokens(terms, numbers[there], owners[there], positions[there])

    def _number_terms(self, words: list[str]) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """Return the number of the indexed form of each word, -1 if it is dropped, and the distinct forms."""
        forms = self._forms
        if len(forms) > _MAX_FORMS:
            forms.clear()
        new_words = set(words).difference(forms)
        forms.update(zip(new_words, map(self._normalize, new_words), strict=True))
        words_by_form = list(map(forms.__getitem__, words))
        # Numbers in the order of the first word of each form.
        terms = dict.fromkeys(words_by_form)
        terms.pop(None, None)
        numbers: dict[str | None, int] = dict(zip(terms, range(len(terms)), strict=True))
        numbers[None] = -1
        places = np.fromiter(map(numbers.__getitem__, words_by_form), np.int64, len(words))
        return places, texts_to_arrow([term for term in terms if term is not None], pa.string())

    @cached_property
    def _forms(self) -> dict[str, str | None]:
        """The indexed forms of words that were normalized: texts that are cut later have most of them."""
        return {}

    def _normalize(self, word: str) -> str | None:
        """Return the indexed form of a word; None if it is dropped."""
        if (not word and self.base != "raw") or (
            self.max_length is not None and len(word.encode()) >= self.max_length
        ):
            return None
        if self.lower:
            word = word.lower()
        if self.stem:
            word = self._stemmer.stemWord(word)
        if word in self._stop_words:
            return None
        return "".join(map(folded, word)) if self.fold and not word.isascii() else word

    @property
    def _model(self) -> tuple[str, str] | None:
        """Family and name of the segmenter's model; None for other tokenizers."""
        family, slash, model = self.base.partition("/")
        return (family, model) if slash and family in SEGMENTERS else None

    @cached_property
    def _stop_words(self) -> frozenset[str]:
        if not self.stops:
            return frozenset()
        return stop_words(self.language) if self.own_stops is None else frozenset(self.own_stops)

    @cached_property
    def _stemmer(self) -> Any:
        # Imported here, because it loads the stemmers of all languages.
        import snowballstemmer

        return snowballstemmer.stemmer(self.language.lower())


def _split_words(texts: pa.Array, base: str) -> tuple[pa.Array, Ints]:
    """Split texts at separators; return the pieces and the text of each, ascending."""
    if len(texts) == 1 and texts[0].is_valid and (text := texts[0].as_py()).isascii():
        # A query: compiling the Unicode expression would take longer than everything else.
        pieces = re.split(_ASCII_BREAKS[base], text)
        return texts_to_arrow(pieces, texts.type), np.zeros(len(pieces), np.int64)
    if (ascii_words := _split_ascii(texts, base)) is not None:
        return ascii_words
    lists = pc.split_pattern_regex(texts, _BREAKS[base])
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.list_flatten(lists), owners


def _split_ascii(texts: pa.Array, base: str) -> tuple[pa.Array, Ints] | None:
    """Return the words of ASCII texts and the text of each; None if a text has other characters.

    Passes over the bytes of all texts take half the time of the regular expression.
    """
    texts = texts.fill_null("") if texts.null_count else texts
    offset_type = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offset_buffer, data = texts.buffers()
    if not len(texts) or data is None:
        return None
    bounds = np.frombuffer(offset_buffer, offset_type)[texts.offset : texts.offset + len(texts) + 1]
    values = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds.astype(np.int64) - bounds[0]
    if not len(values) or int(values.max()) > _LAST_ASCII:
        return None
    is_inside = _WORD_BYTES[base][values]
    # A word begins after a separator or at the beginning of a text, and ends likewise.
    begins, ends = is_inside.copy(), is_inside.copy()
    begins[1:] &= ~is_inside[:-1]
    ends[:-1] &= ~is_inside[1:]
    is_nonempty = bounds[:-1] < bounds[1:]
    firsts, lasts = bounds[:-1][is_nonempty], bounds[1:][is_nonempty] - 1
    begins[firsts], ends[lasts] = is_inside[firsts], is_inside[lasts]
    starts = np.flatnonzero(begins)
    offsets = np.zeros(len(starts) + 1, offset_type)
    np.cumsum(np.flatnonzero(ends) - starts + 1, out=offsets[1:])
    # The bytes inside words, one after the other, are the words.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values[is_inside])]
    words = pa.Array.from_buffers(texts.type, len(starts), buffers)
    counts = np.diff(np.searchsorted(starts, bounds))
    return words, np.repeat(np.arange(len(texts)), counts)


def _tokens(words: pa.Array, texts: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Tokens:
    encoded = words.dictionary_encode()
    return Tokens(encoded.dictionary, encoded.indices.to_numpy().astype(np.int64), texts, positions)


def _positions(
    tokens: npt.NDArray[np.int64], empty: int, texts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the number of non-empty tokens before each token in its text."""
    if not len(tokens):
        return tokens
    if empty < 0:
        before = np.arange(len(tokens))
    else:
        words = tokens != empty
        before = np.cumsum(words) - words
    firsts = np.flatnonzero(np.diff(texts, prepend=-1))
    before -= np.repeat(before[firsts], np.diff(firsts, append=len(tokens)))
    return before


@lru_cache(maxsize=1 << 14)
def folded(letter: str) -> str:
    """Return the ASCII letters of a letter; the letter itself if there are none."""
    if letter.isascii():
        return letter
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    parts = unicodedata.normalize("NFKD", letter)
    plain = "".join(_SPECIAL.get(part, part) for part in parts if not unicodedata.combining(part))
    return plain if plain and plain.isascii() else letter
