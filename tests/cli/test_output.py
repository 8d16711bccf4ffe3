"""What is printed: on a terminal, into a pipe, and while something takes long."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest

from spark_lance.cli.main import main
from spark_lance.cli.output import Progress, as_json, print_pairs, print_table, say

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal of 40 columns with colours."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return shown


def test_tables_are_aligned(capsys: Captured) -> None:
    print_table(("name", "count"), [("a", 5), ("longer", 1000), ("line\nbreak", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name        count", "a               5", "longer       1000", "line break      -"]


def test_what_is_piped_is_whole_and_plain(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = tuple(f"column {number}" for number in range(30))
    print_table(names, [tuple(range(30))])
    print_pairs([("name", "x" * 200)])
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert "x" * 200 in out
    assert "\x1b" not in out


def test_markup_is_shown_as_it_stands(capsys: Captured) -> None:
    print_table(("[bold]a",), [("[red]x[/red] :smile:",)])
    print_pairs([("[red]", "[/nothing]")])
    assert capsys.readouterr().out == "[bold]a\n[red]x[/red] :smile:\n[red]  [/nothing]\n"


def test_a_terminal_gets_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    names = tuple(f"column {number}" for number in range(10))
    print_table(names, [tuple("y" * 30 for _ in names)])
    shown = terminal.getvalue()
    assert "\x1b[1m" in shown
    assert "not shown: column 3, column 4" in shown
    assert "…" in shown
    terminal.truncate(0)
    print_table(names, [tuple("y" * 30 for _ in names)], wide=True)
    assert "not shown" not in terminal.getvalue()
    assert terminal.getvalue().count("y" * 30) == 10


def test_a_long_column_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    vector = [0.123456] * 20
    print_table(("id", "title", "vector", "tags"), [(7, "a red fox", vector, {"b": ["x", "y"]})])
    (line,) = (line for line in terminal.getvalue().splitlines() if "fox" in line)
    assert line.split()[:4] == ["7", "a", "red", "fox"]
    assert "…" in line
    assert line.endswith("b=[x, y]")
    assert len(line) == 40


def test_letters_of_two_cells_are_not_cut(capsys: Captured) -> None:
    print_table(("名前", "n"), [("東京都千代田区", 1), ("", [[], [1, 2], {}])])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["東京都千代田区", "1"]
    assert lines[2].endswith("[], [1, 2], {}")


def test_wide_output_cuts_no_value(capsys: Captured) -> None:
    print_table(("a",), [("x" * 500,)])
    assert "x" * 79 + "…" in capsys.readouterr().out
    print_table(("a",), [("x" * 500,)], wide=True)
    assert "x" * 500 in capsys.readouterr().out


def test_progress_shows_on_terminals_only() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with Progress("reading", stream, patience=0.01) as progress:
            progress("reading", 512, 2048, "bytes")
            time.sleep(0.3)
            progress("reading", 1024, 2048, "bytes")
            time.sleep(0.3)
            progress("deleting", 3, 4, "files")
            time.sleep(0.3)
    assert file.getvalue() == ""
    shown = terminal.getvalue()
    for words in (
        "25%",
        "512 bytes of 2.0 KiB",
        "1.0 KiB of 2.0 KiB",
        "/s",
        "deleting",
        "3 of 4 files",
    ):
        assert words in shown


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_bar_is_one_line_of_the_window(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal()
    with Progress("rewriting", terminal, patience=0.01) as progress:
        progress("rewriting", 1_234_567, 40_000_000, "rows")
        time.sleep(0.4)
        progress("rewriting", 30_000_000, 40_000_000, "rows")
        time.sleep(0.4)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = [line for line in re.split(r"[\r\n]", plain) if line.strip()]
    assert len(lines) > 1
    for line in lines:
        assert len(line) <= width
        assert "rewriting" in line or width == 40
    if width >= 80:
        assert any("30,000,000 of 40,000,000 rows, " in line and "/s" in line for line in lines)


def test_what_is_done_at_once_shows_no_bar() -> None:
    terminal = Terminal()
    with Progress("reading", terminal) as progress:
        progress("reading", 1, 1, "rows")
    assert terminal.getvalue().strip() in ("", "\x1b[?25h", "\x1b[?25l\x1b[?25h")


@pytest.mark.parametrize(
    "mark", ["\x1b", "\x9b", "\x07", "\x00", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800"]
)
def test_a_terminal_acts_on_nothing_of_a_table(mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"a{mark}[31mb"
    say(text)
    say(as_json({text: text}, indent=None))
    print_table([text], [[text]])
    print_pairs([(text, text)])
    shown = capsys.readouterr().out
    assert mark not in shown
    first, second = shown.splitlines()[:2]
    assert first == f"a\\u{ord(mark):04x}[31mb"
    assert json.loads(second) == {text: text}


def test_marks_beyond_the_basic_plane_stay_json(capsys: pytest.CaptureFixture[str]) -> None:
    say(as_json({"a": "\U000e0041", "b": "\U0001f600 é\t"}, indent=None))
    shown = capsys.readouterr().out
    assert "\U000e0041" not in shown
    assert json.loads(shown) == {"a": "\U000e0041", "b": "\U0001f600 é\t"}


def test_errors_of_commands_are_visible_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "q8Zr2vXw7LmN4tYb"
    for words in (
        ["inspect", f"{tmp_path}/\x1b]0;x\x07\u202e"],
        ["\x1b[31mnothing"],
        ["inspect", f"{tmp_path}/t?sig={secret}"],
        ["inspect", str(tmp_path), "--storage", f'password={{"a": "{secret}'],
        ["inspect", str(tmp_path), "--storage", secret],
        ["inspect", str(tmp_path), f"--nothing=password={secret}"],
    ):
        assert main(words) == 2
    shown = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.err + shown.out)
    assert secret not in shown.err + shown.out
