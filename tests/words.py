"""A lint for names and prose: it counts patterns that make the code and the documents hard to read.

python -m tests.words             prints each match as path:line: rule: text
python -m tests.words FILE ...    of these files only
python -m tests.words --lower     lowers the counts in tests/words.json to today's

Each file may contain as many matches of a rule as tests/words.json says; a file that it does not name, none.
Counts only ever go down. In Python files the rules read docstrings, comments and names; in Java files
comments and names; in Markdown the prose outside of code and tables.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["BUDGETS", "PARTICIPLES", "counts", "files", "lower", "main", "matches"]

ROOT = Path(__file__).resolve().parent.parent
# Matches by "path: rule" that are left over from the time before the lint.
BUDGETS = ROOT / "tests" / "words.json"
FOLDERS = ("spark_lance", "docs", "decisions", "examples", "benchmarks")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
# Names that say what happened to a value and not what it is.
PARTICIPLES = frozenset(
    re.findall(
        r"\w+",
        """
    asked begun brought chosen cooked done doomed dressed drawn ended fitted found given gone got grown handed
    held kept known lent made meant met mine misfit misfits moved needed placed planned said seen sent settled
    shown spent stored taken tightened told touched turned unfit united wanted wish
    """,
    )
)
# Java files have no other names for these than those of the classes that they belong to.
JAVA_PARTICIPLES = PARTICIPLES | {"own", "wish"}
# Comments, strings and characters of Java, which have no names.
_JAVA_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])+\'', re.DOTALL)
# A type, and the name that it declares: of a variable, parameter, field, method or class.
_JAVA_NAME = re.compile(
    r"\b(?P<type>[A-Za-z_][\w.]*)(?:<[^;(){}=]*>)?(?:\[\])*(?:\.\.\.)?\s+(?P<name>\w+)\s*(?=[=;,():{])"
)
_NO_TYPES = frozenset(
    ("return", "throw", "new", "else", "case", "import", "package", "instanceof", "extends")
)
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "old word": re.compile(r"\b(?:anew|in vain|at hand|whither|wherefore|brings? along|mends?)\b", re.I),
    "beside": re.compile(r"\bbeside\b", re.I),
    "relative clause": re.compile(r"\b(?:of|by|from) which\b|\bof whose\b|\bthose of which\b", re.I),
    "told": re.compile(r"\b(?:is|are) told\b|\btells? of\b", re.I),
    "free relative": re.compile(r"(?:^|[.:] )(?:What|Who|Of) (?!is\b[^.]*\?)[^.?]*\.", re.M),
}
MOST_WORDS = 30
Match = tuple[int, str, str]


def files() -> list[Path]:
    """Return the files that the lint reads."""
    suffixes = (".py", ".java", ".md")
    inner = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*"))]
    chosen = [path for path in inner if path.suffix in suffixes and not path.name.endswith("_pb2.py")]
    return [*chosen, *(ROOT / name for name in PAGES)]


def matches(path: Path) -> Iterator[Match]:
    """Yield (line, rule, text) for each match in a file."""
    source = path.read_text()
    if path.suffix == ".py":
        yield from _participles(source)
    elif path.suffix == ".java":
        yield from _java_participles(source)
    for line, text in _prose(path, source):
        for rule, pattern in PATTERNS.items():
            for match in pattern.finditer(text):
                yield line + text.count("\n", 0, match.start()), rule, " ".join(match[0].split())[:60]
        for sentence in re.split(r"(?<=[.:?!])\s+|\n\n|\s(?=@(?:param|return|throws)\b)", text):
            words = sentence.split()
            if len(words) > MOST_WORDS:
                yield line, "long sentence", f"{len(words)} words: {' '.join(words[:8])} ..."


def _participles(source: str) -> Iterator[Match]:
    """Yield the names that a file declares: variables, attributes, parameters, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        else:
            continue
        name = name.strip("_")
        if (name.lower() if isinstance(node, ast.ClassDef) else name) in PARTICIPLES:
            yield node.lineno, "participle", name


def _java_participles(source: str) -> Iterator[Match]:
    code = _JAVA_TEXT.sub(lambda text: "\n" * text[0].count("\n"), source)
    for match in _JAVA_NAME.finditer(code):
        if match["name"].lower() in JAVA_PARTICIPLES and match["type"] not in _NO_TYPES:
            yield code.count("\n", 0, match.start("name")) + 1, "participle", match["name"]


def _prose(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) for each piece of prose in a file."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if docstring := ast.get_docstring(node):
                yield node.body[0].lineno, _without_layouts(docstring)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
    elif path.suffix == ".java":
        for comment in re.finditer(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL):
            prose = re.sub(
                r"<pre>.*?</pre>", lambda block: "\n" * block[0].count("\n"), comment[0], flags=re.DOTALL
            )
            text = re.sub(r"^\s*(?:/\*+|\*/|\*|//)", "", prose, flags=re.MULTILINE)
            yield source.count("\n", 0, comment.start()) + 1, text
    else:
        text = re.sub(
            r"```.*?```|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL
        )
        yield 1, re.sub(r"^\s*(?:\||#).*$", "", text, flags=re.MULTILINE)


def _without_layouts(docstring: str) -> str:
    """Return a docstring without its indented blocks, which show bytes, code or arguments."""
    return re.sub(r"^ {4}.*$", "", docstring, flags=re.MULTILINE)


def counts(paths: Sequence[Path]) -> Counter[str]:
    """Return the number of matches by "path: rule"."""
    result: Counter[str] = Counter()
    for path in paths:
        result.update(f"{path.relative_to(ROOT)}: {rule}" for _, rule, _ in matches(path))
    return result


def lower(budgets: Mapping[str, int], today: Mapping[str, int]) -> dict[str, int]:
    """Return the budgets, none above today's count and none of zero."""
    return {key: min(most, today[key]) for key, most in sorted(budgets.items()) if today.get(key)}


def main(arguments: Sequence[str]) -> int:
    """Print the matches, or lower the budgets; return 1 if files have more matches than they may have."""
    budgets = json.loads(BUDGETS.read_text())
    if arguments[:1] == ["--lower"]:
        BUDGETS.write_text(json.dumps(lower(budgets, counts(files())), indent=0) + "\n")
        return 0
    paths = [Path(name).resolve() for name in arguments] or files()
    for path in paths:
        for line, rule, text in matches(path):
            sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {rule}: {text}\n")
    return int(any(count > budgets.get(key, 0) for key, count in counts(paths).items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
