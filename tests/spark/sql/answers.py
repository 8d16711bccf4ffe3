"""Files of SQL statements with their answers below them, run in a session of any kind.

    SELECT ...;             a statement, on as many lines as it needs
    > 1 | a                 a row of its answer; nothing is compared if there are none, nor an error told
    ~ text                  its answer has this text somewhere
    ! text                  it fails, and says this

{root} stands for a folder that is not the catalog's. A file that begins with
"-- needs Spark <release>: <reason>" is skipped with older ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException

from spark_lance.spark.sql.procedures import PROCEDURES

__all__ = ["ALL_FILES", "FILES", "reason_to_skip", "wrong_answers"]


def reason_to_skip(file: Path) -> str:
    """Return why a file does not run on this release of Spark, empty if it does."""
    needs = re.match(r"-- needs Spark (\d+)\.(\d+): (.*)", file.read_text())
    older = needs and tuple(map(int, pyspark.__version__.split(".")[:2])) < (int(needs[1]), int(needs[2]))
    return needs[3] if needs and older else ""


ALL_FILES = sorted(Path(__file__).parent.glob("*.sql"))
FILES = [file for file in ALL_FILES if not reason_to_skip(file)]


def statements(text: str) -> list[tuple[str, list[str], str, str]]:
    """Return each statement with the rows, the error and the part of the answer that are expected of it."""
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    results = []
    for sql, message in re.findall(r"(.+?);\n((?:[>!~] [^\n]*\n)*)", text, flags=re.DOTALL):
        lines = message.splitlines()
        rows = [line[2:] for line in lines if line[0] == ">"]
        error, part = ("".join(line[2:] for line in lines if line[0] == mark) for mark in "!~")
        results.append((sql.strip(), rows, error, part))
    return results


def wrong_answers(session: Any, text: str) -> list[str]:
    """Run statements in a session, classic or of Spark Connect, and return what is not as expected."""
    wrong = []
    for sql, rows, error, part in statements(text):
        try:
            result = session.sql(sql)
            answer = [" | ".join(map(str, row)) for row in result.collect()]
        except PySparkException as failure:
            if not error or error not in str(failure):
                wrong.append(f"{sql}: {failure}")
            continue
        call = re.match(r"CALL .*?system\.(\w+)\(", sql)
        if call and ", ".join(result.columns) not in PROCEDURES[call[1]].results:
            wrong.append(f"{sql}: columns {result.columns}")
        compared = rows or (sql.startswith(("SELECT", "SHOW")) and not part)
        if error or part not in "\n".join(answer) or (compared and answer != rows):
            wrong.append(f"{sql}: {answer}")
    return wrong
