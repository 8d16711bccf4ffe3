"""When compiled kernels are chosen."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_lance.errors import OptionError
from spark_lance.file.kernels.accelerate import SAVED, START_COST, Accelerator

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the loading of compiled kernels; return what was loaded."""
    loaded: list[str] = []

    def load(name: str) -> ModuleType:
        loaded.append(name)
        module = ModuleType(name)
        vars(module)["KERNELS"] = {"fsst": len}
        return module

    monkeypatch.setattr(importlib, "import_module", load)
    return loaded


@pytest.mark.parametrize("name", SAVED)
def test_auto_waits_until_loading_pays(loads: list[str], name: str) -> None:
    process = Accelerator("auto")
    enough = int(START_COST / SAVED[name]) + 1
    assert process.kernel(name, enough // 2) is None
    assert loads == []
    process.kernel(name, enough - enough // 2)
    assert len(loads) == 1
    process.kernel(name, enough)
    assert len(loads) == 1


def test_kernels_share_what_loading_costs(loads: list[str]) -> None:
    process = Accelerator("auto")
    for name, saved in SAVED.items():
        assert process.kernel(name, int(0.4 * START_COST / saved)) is None
    assert process.kernel("fsst", int(0.4 * START_COST / SAVED["fsst"])) is len
    assert len(loads) == 1


def test_on_loads_at_once_and_off_never(loads: list[str]) -> None:
    assert Accelerator("off").kernel("fsst", 1 << 60) is None
    assert loads == []
    assert Accelerator("on").kernel("fsst", 1) is len


@pytest.mark.parametrize("mode", ["yes", "ON", ""])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(OptionError, match="SPARK_LANCE_NUMBA"):
        Accelerator(mode)


def test_without_numba_the_twins_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "numba":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "spark_lance.file.kernels.numba_kernels", raising=False)
    assert Accelerator("auto").kernel("fsst", 1 << 60) is None
    with pytest.raises(OptionError, match="pip install"):
        Accelerator("on").kernel("fsst", 1)


@pytest.mark.parametrize(("value", "expected"), [("off", "False"), ("", "False"), (" On ", "True")])
def test_the_environment_decides(value: str, expected: str) -> None:
    pytest.importorskip("numba")
    program = (
        "import sys; from spark_lance.file.kernels.accelerate import compiled;"
        "found = compiled('fsst', 1) is not None; assert found == ('numba' in sys.modules); print(found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"SPARK_LANCE_NUMBA": value, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
