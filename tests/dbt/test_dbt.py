"""dbt builds the example of integrations/dbt in a fresh folder, from profiles.yml and nothing else.

Each call of dbt is a process with a Spark session of its own. What it leaves behind is read without Spark.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset

pytestmark = pytest.mark.dbt

ROOT = Path(__file__).resolve().parents[2]
DBT = Path(sys.executable).with_name("dbt")
DAY = datetime.date(2026, 3, 1)


class Project:
    """A copy of the example.

    Args:
        folder: of the copy, whose tables are in `warehouse` below it.
    """

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT / "integrations" / "dbt" / "example", folder)
        self.folder = folder
        self.output = ""
        # Versions of tables after the first day.
        self.first: dict[str, int] = {}

    def run(self, *arguments: str, until: str = "2026-03-02", expected: int = 0, **settings: str) -> None:
        """Call dbt, and check its exit code."""
        following = datetime.date.fromisoformat(until) + datetime.timedelta(1)
        times = ["--event-time-start", until, "--event-time-end", str(following)]
        command = [
            str(DBT),
            "--no-use-colors",
            *arguments,
            *(times if arguments[0] in ("build", "run") else ()),
        ]
        command += ["--vars", json.dumps({"until": until, "with_orders": until > "2026-03-01"})]
        process = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        self.output = process.stdout + process.stderr
        assert process.returncode == expected, self.output[-6000:]

    def table(self, name: str) -> LanceDataset:
        """Return a table of the schema bakery."""
        (path,) = (self.folder / "warehouse").glob(f"*_bakery${name}")
        return spark_lance.dataset(str(path))

    def rows(self, name: str, *columns: str, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return columns of all rows of a table, sorted."""
        table = self.table(name) if version is None else self.table(name).checkout_version(version)
        rows = table.to_table(columns=list(columns)).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Build the example as of its first day, and then as of its second."""
    project = Project(tmp_path_factory.mktemp("dbt") / "bakery")
    project.run("build", until="2026-03-01")
    assert "ERROR=0" in project.output
    project.first = {name: project.table(name).version for name in ("products", "raw_products")}
    project.run("build")
    return project


def test_seeds_have_their_exact_values(project: Project) -> None:
    note = "sold by the dozen, 10% off"
    assert project.rows("raw_products", "product_id", "name", "price", "note") == [
        (1, "Rye loaf", Decimal("4.20"), None),
        (2, "Baker's roll", Decimal("0.55"), note),
        (2, "Baker's roll", Decimal("0.60"), note),
        (3, "Poppy \\ sesame ring", Decimal("1.10"), None),
        (4, "Walnut cake", Decimal("18.00"), "order a day ahead"),
    ]


def test_replaced_tables_keep_their_history(project: Project) -> None:
    first = project.first
    old = project.rows("products", "product_id", "price", version=first["products"])
    assert old == [(1, Decimal("4.20")), (2, Decimal("0.55")), (3, Decimal("1.10"))]
    assert project.rows("products", "product_id", "price") == [
        (1, Decimal("4.20")), (2, Decimal("0.60")), (3, Decimal("1.10")), (4, Decimal("18.00")),
    ]  # fmt: skip
    # A seed is replaced in one commit.
    assert project.table("raw_products").version == first["raw_products"] + 1


def test_a_contract_and_comments_become_those_of_the_table(project: Project) -> None:
    fields = {field.name: field for field in project.table("products").schema}
    assert not fields["product_id"].nullable
    assert fields["name"].nullable
    project.run("docs", "generate")
    catalog = json.loads((project.folder / "target" / "catalog.json").read_text())
    node = catalog["nodes"]["model.bakery.products"]
    assert node["metadata"]["comment"] == "What the bakery sells: a product's newest price"
    assert node["columns"]["price"]["comment"] == "Euros, not 'cents'"
    assert node["columns"]["price"]["type"] == "decimal(8,2)"
    assert catalog["sources"] == {}
    assert {"seed.bakery.raw_orders", "snapshot.bakery.product_history"} <= set(catalog["nodes"])


def test_each_strategy_changes_the_rows_that_it_should(project: Project) -> None:
    next_day = DAY + datetime.timedelta(1)
    assert project.rows("order_log", "order_id", "line") == [
        (100, 1), (100, 2), (101, 1), (102, 1), (102, 2), (103, 1),
    ]  # fmt: skip
    # The key is merged; a column is new; another one is left out of updates.
    assert project.rows("product_sales", "product_id", "sold", "first_sold", "orders") == [
        (1, 3, DAY, 2), (2, 18, DAY, 2), (3, 4, DAY, 1), (4, 1, next_day, 1),
    ]  # fmt: skip
    # Orders of the first day keep the prices of that day.
    assert project.rows("order_lines", "order_id", "line", "amount") == [
        (100, 1, Decimal("8.40")), (100, 2, Decimal("6.60")), (101, 1, Decimal("4.40")),
        (102, 1, Decimal("3.60")), (102, 2, Decimal("18.00")), (103, 1, Decimal("4.20")),
    ]  # fmt: skip
    assert project.rows("sales_by_day", "day", "product_id", "sold") == [
        (DAY, 1, 2), (DAY, 2, 12), (DAY, 3, 4), (next_day, 1, 1), (next_day, 2, 6), (next_day, 4, 1),
    ]  # fmt: skip
    assert project.rows("orders_by_batch", "order_id", "line") == project.rows(
        "order_log", "order_id", "line"
    )
    for name in ("order_log", "order_lines", "sales_by_day", "orders_by_batch"):
        assert project.table(name).version == 2, f"{name}: a run is one version"


def test_snapshots_keep_what_was(project: Project) -> None:
    for name in ("product_history", "product_versions"):
        rows = project.rows(name, "product_id", "price", "dbt_valid_to")
        ended = [(number, price) for number, price, until in rows if until is not None]
        assert ended == [(2, Decimal("0.55"))]
        assert len(rows) == 5


def test_a_python_model_is_a_table(project: Project) -> None:
    assert project.rows("product_ranks", "name", "amount") == [
        ("Baker's roll", Decimal("10.20")), ("Poppy \\ sesame ring", Decimal("4.40")),
        ("Rye loaf", Decimal("12.60")), ("Walnut cake", Decimal("18.00")),
    ]  # fmt: skip


def test_runs_on_the_same_rows_change_none(project: Project) -> None:
    names = ("product_sales", "order_lines", "sales_by_day", "orders_by_batch")
    columns = {name: project.table(name).schema.names for name in names}
    before = {name: project.rows(name, *columns[name]) for name in names}
    project.run("run", "--select", *names)
    for name in names:
        assert project.rows(name, *columns[name]) == before[name], name
    history = project.rows("product_history", "product_id", "dbt_valid_to")
    project.run("snapshot")
    assert project.rows("product_history", "product_id", "dbt_valid_to") == history


def test_a_full_refresh_replaces_rows_in_one_version(project: Project) -> None:
    version = project.table("order_log").version
    model = project.folder / "models" / "sales" / "order_log.sql"
    text = model.read_text()
    # dbt begins each statement of a hook with a comment.
    model.write_text(text + "\n{{ config(post_hook='vacuum {{ this }} dry run') }}\n")
    project.run("run", "--full-refresh", "--select", "order_log")
    model.write_text(text)
    assert project.table("order_log").version == version + 1
    assert len(project.rows("order_log", "order_id")) == 6


def test_a_table_whose_model_fails_stays_as_it_is(project: Project) -> None:
    model = project.folder / "models" / "sales" / "products.sql"
    text = model.read_text()
    version = project.table("products").version
    model.write_text(text.replace("select product_id,", "select nullif(product_id, 3) as product_id,"))
    project.run("run", "--select", "products", expected=1)
    assert "column product_id is NOT NULL" in project.output
    assert project.table("products").version == version
    seed = project.folder / "seeds" / "raw_orders.csv"
    rows = seed.read_text()
    seed.write_text(rows.replace("2026-03-01 08:30:00", "half past eight"))
    project.run("seed", "--select", "raw_orders", expected=1)
    assert "column ordered_at: half past eight is not a timestamp" in project.output
    seed.write_text(rows)
    model.write_text(text.replace("materialized='table'", "materialized='table', file_format='parquet'"))
    project.run("run", "--select", "products", expected=1)
    assert "remove file_format" in project.output
    model.write_text(text)
    project.run("run", "--select", "products")


def test_views_are_in_a_catalog_that_can_hold_them(tmp_path: Path) -> None:
    project = Project(tmp_path / "bakery")
    in_hive: dict[str, Any] = {"BAKERY_METASTORE": "hive", "BAKERY_VIEW_CATALOG": "spark_catalog"}
    project.run("build", "--select", "+products", "+stg_orders", BAKERY_STAGING="view", **in_hive)
    # The view is still there in the next session.
    project.run("build", "--select", "products", BAKERY_STAGING="view", **in_hive)
    assert len(project.rows("products", "product_id")) == 4
    assert not list((project.folder / "warehouse").glob("*stg_products"))


def test_a_profile_without_tables_says_what_to_add(tmp_path: Path) -> None:
    project = Project(tmp_path / "bakery")
    profile = project.folder / "profiles.yml"
    lines = profile.read_text().splitlines()
    profile.write_text("\n".join(line for line in lines if " root:" not in line))
    project.run("debug", expected=1)
    assert "add root: /path/to/tables" in project.output
    profile.write_text("\n".join(lines).replace("root:", "method: thrift\n      root:"))
    project.run("debug", expected=1)
    assert "leave method out" in project.output
