"""The code blocks of the documentation of other table formats, cut into statements that can run here.

The pages are read from a fetched copy, which is no part of this repository:

    <copies>/iceberg/docs/docs/spark-*.md         of github.com/apache/iceberg
    <copies>/delta/docs/src/content/docs/*.mdx    of github.com/delta-io/delta
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Page", "Statement", "read_pages"]

_ICEBERG = ("ddl", "getting-started", "procedures", "queries", "structured-streaming", "writes")
_FENCE = re.compile(r"^([ \t]*)```+[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_LANGUAGES = {"sql": "sql", "python": "python", "scala": "scala"}
_COMMENT = re.compile(r"(?:--|—-)[^\n]*")
_BEGINS = (
    r"(?:CREATE|REPLACE TABLE|ALTER|DROP|VACUUM|OPTIMIZE|DESC|DESCRIBE|RESTORE|CONVERT|UPDATE (?!SET)|DELETE FROM"
    r"|MERGE|INSERT|REORG|SHOW|CALL|SET spark|GENERATE|TRUNCATE|USE)\b"
)
_NEXT = re.compile(rf"\n(?={_BEGINS})|\n[ \t]*\n(?=SELECT\b)", re.IGNORECASE)
_PARTS_OF_GRAMMAR = re.compile(r"\[[A-Z]|\.\.\., *\.\.\.|, \.\.\.\)|arg_name_2|arg_1")
_NO_STATEMENT = re.compile(r"^(?:WHEN\b|events\.date)", re.IGNORECASE)
_TABLE_HEAD = re.compile(r"^[ \t]*\|([^\n]+)\|[ \t]*$", re.MULTILINE)
_OUTPUT = re.compile(r"^\|\s*Output Name[^\n]*\n\|[^\n]*\n((?:\|[^\n]*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """A statement of a page.

    Attributes:
        number: its position in the page, from 0.
        language: sql, python or scala (as Python).
        text: what is run, before names are replaced.
        columns: columns that the page shows in its result; empty if it shows none.
        block: the code block that it is in, from 0.
    """

    number: int
    language: str
    text: str
    columns: tuple[str, ...] = ()
    block: int = 0


@dataclass
class Page:
    """A page: its name and statements.

    Attributes:
        name: such as "iceberg/spark-ddl".
        left_out: code of the languages above that is no whole statement, such as a form with brackets.
    """

    name: str
    statements: list[Statement] = field(default_factory=list)
    left_out: int = 0


def read_pages(copies: Path) -> list[Page]:
    """Return the pages of both projects that have statements."""
    files = [
        (f"iceberg/spark-{name}", copies / "iceberg/docs/docs" / f"spark-{name}.md") for name in _ICEBERG
    ]
    delta = copies / "delta/docs/src/content/docs"
    for path in sorted(delta.rglob("*.mdx")):
        name = path.parent.name if path.stem == "index" else path.stem
        files.append((f"delta/{name}", path))
    pages = [_page(name, path.read_text()) for name, path in files if path.exists()]
    return [page for page in pages if page.statements]


def _page(name: str, text: str) -> Page:
    page = Page(name)
    blocks = list(_FENCE.finditer(text))
    for position, block in enumerate(blocks):
        language = _LANGUAGES.get(block[2].lower())
        if language is None:
            continue
        end = blocks[position + 1].start() if position + 1 < len(blocks) else len(text)
        columns = _shown_columns(text, block.start(), block.end(), end, blocks, position)
        code = textwrap.dedent(block[3].replace("\t", "    "))
        split = {"sql": _sql, "python": _python, "scala": _scala}[language]
        for part in split(code):
            if part is None:
                page.left_out += 1
            else:
                is_program = language == "sql" and part.startswith("spark.")
                page.statements.append(
                    Statement(
                        len(page.statements), "python" if is_program else language, part, columns, position
                    )
                )
    return page


def _shown_columns(
    text: str, start: int, end: int, next_start: int, blocks: list[re.Match[str]], position: int
) -> tuple[str, ...]:
    """Return the columns of the result that a page shows behind a block, or above it for procedures."""
    heading = text.rfind("\n### ", 0, start)
    if "CALL" in text[start:end] and heading >= 0 and (output := _OUTPUT.search(text, heading, start)):
        return tuple(re.findall(r"^\|\s*`(\w+)`", output[1], re.MULTILINE))
    between = text[end:next_start]
    if "\n#" in between:
        between = between[: between.index("\n#")]
    following = blocks[position + 1] if position + 1 < len(blocks) else None
    if following is not None and not following[2] and "|" in following[3]:
        between = following[3]
    elif (
        following is not None
        and not _LANGUAGES.get(following[2].lower())
        and "\n#" not in text[end:next_start]
    ):
        between = between or following[3]
    head = _TABLE_HEAD.search(between)
    if head is None:
        return ()
    names = [name.strip().strip("`") for name in head[1].split("|")]
    if names[0] == "Function":  # a list of functions
        return ()
    return tuple(name for name in names if re.fullmatch(r"\w+", name))


def _sql(code: str) -> Iterator[str | None]:
    code = _COMMENT.sub("", code)
    for part in code.split(";"):
        for text in _NEXT.split("\n" + part.strip()):
            text = (
                re.sub(r"\n[ \t]*\n.*", "", text.strip(), flags=re.DOTALL)
                if "MERGE" not in text
                else text.strip()
            )
            if not text or text.startswith("<") or _NO_STATEMENT.match(text):
                continue
            if text.startswith("spark."):
                yield from _python(text)
                continue
            if _PARTS_OF_GRAMMAR.search(text):
                yield None
                continue
            # A line for each of several queries.
            queries = text.split("\n")
            whole = all(re.match(r"SELECT\b.*\bFROM\b", query, re.IGNORECASE) for query in queries)
            yield from queries if whole else [text]


def _python(code: str) -> Iterator[str | None]:
    code = re.sub(r"^\s*\}\s*$", "", code, flags=re.MULTILINE)
    code = re.sub(r"#[^\n]*$", "", code, flags=re.MULTILINE)
    code = re.sub(r"[ \t]*\\?\s*\n(?:[ \t]*\n)*[ \t]*\.(?=\w)", ".", code)
    code = re.sub(r"\\[ \t]*$", "", code, flags=re.MULTILINE).replace("<-", "<")
    # A placeholder becomes a text, unless it is in one.
    code = re.sub(
        r"""("[^"\n]*"|'[^'\n]*')|<([\w-]+)>""",
        lambda match: match[1] or f'"<{match[2]}>"',
        code,
    )
    code = textwrap.dedent(code)
    try:
        body = ast.parse(code).body
    except SyntaxError:
        yield None
        return
    pending: list[str] = []
    for node in body:
        text = ast.unparse(node)
        pending.append(text)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef):
            continue
        if isinstance(node, ast.Assign) and not _has_call(node):
            continue
        yield "\n".join(pending)
        pending = []


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _clause(match: re.Match[str]) -> str:
    """Return a clause of a merge as one call."""
    return f".when{match[1]}{match[2][0].upper()}{match[2][1:]}()"


_SCALA: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"/\*.*?\*/", ""),
    (r"(?<!:)//[^\n]*", ""),
    (r"\bval\s+(\w+)(?:\s*:\s*\w+)?\s*=", r"\1 ="),
    (r'\$"([\w.]+)"', r'col("\1")'),
    (r"'(\w+)(?=\W)(?!')", r'col("\1")'),
    (r"===", "=="),
    (r"\.(update|insert)Expr\(", r".\1("),
    (r"\.when(Matched|NotMatched|NotMatchedBySource)\(\)\s*\.(updateAll|insertAll|delete)\(\)", _clause),
    (r"\b(\d+)L\b", r"\1"),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
    (r"\bMap\(", "Map_("),
    (r"\"\s*->\s*", '": '),
    (r"\bSeq\(", "Seq_("),
    (r"Trigger\.\w+\([^()]*\)", "availableNow=True"),
    (r"SparkSession\.builder\(\)", "SparkSession.builder"),
    (r"\bLong\.toString\((\w+)\)", r"str(\1)"),
    (r"\bSparkReadOptions\.(\w+)", r'"\1"'),
    (r'"""', '"""'),
    (r'\bs"', 'f"'),
    (r"\bimport\s+(?:io\.delta|org\.apache|java)[^\n]*", ""),
    (r"\.(count|show|toDF|head|first|collect|cache)\b(?!\()", r".\1()"),
)


def _scala(code: str) -> Iterator[str | None]:
    if re.search(r"\bdef\b|=>|\bclass\b|\bobject\b", code):
        yield None
        return
    for pattern, replacement in _SCALA:
        code = re.sub(pattern, replacement, code, flags=re.DOTALL)
    code = re.sub(r"Map_\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"{\1}", code)
    code = re.sub(r"Seq_\(([^()]*)\)", r"[\1]", code)
    yield from _python(code)
