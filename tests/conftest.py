"""What all tests share: one Spark session per run, and Hypothesis without time limits."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import untouched
from tests.import_graph import module_name, needs_reference, test_modules
from tests.recording import DurationRecorder, Recorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.object_store import Server

ROOT = Path(__file__).resolve().parent.parent
# Python's start imports what is here, in the processes of Spark.
PRELOADING = ROOT / "tests" / "spark" / "preloading"
# The JVMs of tests, also those of processes that tests start, live for seconds: their second compiler would
# take more time than it saves, and so would a look at the bytes of 20,000 classes of Spark. With one compiler
# the JVM keeps 48 MB for compiled code, which Spark fills: methods would be dropped and compiled again. More
# young objects than 126 MB, and fewer collections of them, cost nothing.
UNCHECKED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
COMPILED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{COMPILED} -XX:+UseSerialGC -Xmn400m {UNCHECKED}")

# The workers of Spark and the programs of tests are new processes. Where this variable is set, as in some
# containers, each of them would compile this package again, which takes half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tables are flushed to disk, those of tests too, 3 GB in a run; where there is room, they are in memory.
MEMORY, ROOM = Path("/dev/shm"), 12 << 30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Every run draws the same examples: fresh ones belong to make fuzz, whose failures print a reproducer. Shared
# machines make single examples slow, so a deadline or a check of the speed would fail tests by chance.
OF_THE_MACHINE = frozenset({HealthCheck.too_slow})
settings.register_profile(
    "local", deadline=None, derandomize=True, print_blob=True, suppress_health_check=OF_THE_MACHINE
)
# For a second Python: what differs between Pythons shows in the first examples.
settings.register_profile("quick", settings.get_profile("local"))
settings.register_profile("full", settings.get_profile("local"))
settings.register_profile("fuzz", settings.get_profile("local"), derandomize=False)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or "local"
settings.load_profile(PROFILE)
# The share of its examples that a random test gets; make test-slow, make test-all and make fuzz give it all.
SHARES = {"local": 0.25, "quick": 0.1, "full": 1.0, "fuzz": 1.0}
FEWEST = 5
_STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a run may be asked for."""
    parser.addoption(
        "--record", action="store_true", help="note in tests/tested.json what the tests passed with"
    )
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write the seconds of each file to durations.json",
    )
    parser.addoption("--random", action="store_true", help="run only the tests that draw random examples")
    parser.addoption("--minutes", type=float, help="begin no test after this time")


def pytest_configure(config: pytest.Config) -> None:
    """Note what a run passed with, if asked to; processes that run tests for another leave it to that one."""
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config))
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files that need pylance where it is not installed."""
    if collection_path.suffix != ".py" or find_spec("lance") is not None:
        return None
    return module_needs_reference(collection_path) or None


def module_needs_reference(path: Path) -> bool:
    """Whether a test file imports pylance, itself or by a module of the tests."""
    name = module_name(path)
    return name in test_modules() and needs_reference(name)


def share(count: int, profile: str = PROFILE) -> int:
    """Return how many of a test's random examples or steps a run gets."""
    return min(count, max(FEWEST, round(count * SHARES.get(profile, 1.0))))


def shared(asked: settings, profile: str = PROFILE) -> settings:
    """Return the settings of a random test with the share of its examples that a run gets."""
    # A test that suppresses a check of its own suppresses no other.
    checks = OF_THE_MACHINE.union(asked.suppress_health_check)
    return settings(asked, max_examples=share(asked.max_examples, profile), suppress_health_check=checks)


def interpreted(session: SparkSession) -> SparkSession:
    """Let a session that answers hundreds of queries over few rows interpret them, but in a long run.

    Compiling such a query takes longer than running it.
    """
    if PROFILE != "full":
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that need pylance, and give random tests fewer examples, unless they are long ones."""
    if module_needs_reference(item.path):
        item.add_marker("reference")
    is_long = item.get_closest_marker("slow") or item.get_closest_marker("reference_full")
    test = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
    if getattr(test, "is_hypothesis_test", False) and not hasattr(test, "_given_share"):
        # Hypothesis has no public name for it; tests/test_shares.py tells if it is renamed.
        own = test._hypothesis_internal_use_settings  # type: ignore[union-attr]
        test._hypothesis_internal_use_settings = shared(own, "full" if is_long else PROFILE)  # type: ignore[union-attr]
        test._given_share = True  # type: ignore[union-attr]


def _is_random(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test the same random numbers each time, also if it or a library uses the shared generators."""
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _STARTED > 60 * minutes:
        pytest.skip("the time is over")
    random.seed(0)
    np.random.seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Find thousands of tests without looking for garbage meanwhile, and leave them out of later looks."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


# The longest tests first: files, and then folders whose files need the session. Those of spark/sql come
# behind the others of spark/: settings that they set for later sessions reach the shared one, too, and stay.
LONGEST = (
    "test_examples.py",
    "spark/scan/test_transport.py",
    "spark/scan/test_driver_aggregates.py",
    "spark/test_connect.py",
    "spark/table/test_evolving_columns.py",
    "spark",
    "compatibility",
    "spark/sql/test_statements.py",
    "test_readme.py",
    "spark/sql",
)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out the slow tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what takes longest first, so that two processes end at about the same time."""
    _leave_out_cases(items)
    if config.getoption("--random"):
        items[:] = [item for item in items if _is_random(item)]
        random.shuffle(items)
        return
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        places = (item.path, *item.path.parents)
        return next((ranks[path] for path in places if path in ranks), len(ranks))

    items.sort(key=rank)


def _leave_out_cases(items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests as slow, but for the first of each `step` of them."""
    counts: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if counts[name] % marker.args[0]:
                item.add_marker("slow")
            counts[name] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test against a real server be skipped but for a reason that is written down."""
    report = yield
    if report.skipped and item.get_closest_marker("stores") and not hasattr(report, "wasxfail"):
        from tests.stores.services import is_known

        reason = str(getattr(call.excinfo.value if call.excinfo else None, "msg", ""))
        if not is_known(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, but GAPS in tests/stores/services.py does not say so: {reason}"
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run of all tests against real servers that skipped more or fewer than is written down."""
    chosen = session.config.option
    if chosen.markexpr != "stores" or chosen.keyword or chosen.collectonly or exitstatus:
        return
    if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    from tests.stores.services import wrong_counts

    if wrong := wrong_counts():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f"\nGAPS in tests/stores/services.py is not true: {'; '.join(wrong)}\n")


# The session of the process, once a test has asked for it, and the state it began with.
_SHARED: list[SparkSession] = []
_BEGAN_WITH: list[dict[str, str]] = []


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail the tests of a file that leave the shared session, the environment or the folder changed."""
    had = list(_SHARED)
    before = untouched.state(*had or (None,))
    yield
    after = untouched.state(*_SHARED or (None,))
    if _SHARED:
        untouched.make_active(_SHARED[0])
        if not had:
            # The file's first test has made the session, which sets the environment.
            before = _BEGAN_WITH[0]
    if changed := untouched.changes(before, after):
        pytest.fail(f"what all tests share was changed, and not taken back: {'; '.join(changed)}")


@pytest.fixture
def later_sessions(spark: SparkSession) -> Iterator[SparkSession]:
    """The shared session, for a test after which later sessions are as they were."""
    with untouched.restored_for_later_sessions(spark):
        yield spark


@pytest.fixture(scope="session")
def versitygw() -> Iterator[Server]:
    """A real S3 server and a real DynamoDB, behind one proxy."""
    from tests.stores.servers import versitygw_and_dynamodb

    with versitygw_and_dynamodb() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    """S3 and DynamoDB inside the test process."""
    from tests.object_store import running_server

    with running_server() as server:
        yield server


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("versitygw", marks=pytest.mark.stores),
    ],
)
def s3_server(request: pytest.FixtureRequest) -> Server:
    """Each server of S3 in turn: one for quick tests, a real one for `make test-stores`."""
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["obstore", "s3fs"])
def s3_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each client of S3 in turn. For obstore, no configuration file of the user is in the way."""
    pytest.importorskip(request.param)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    if request.param == "s3fs":
        from spark_lance.io.s3 import S3Store

        monkeypatch.setattr(S3Store, "_client", lambda self, path: None)
    return str(request.param)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic Spark session with two local cores; it finds the format by itself, nothing is registered."""
    from pyspark.sql import SparkSession

    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    # The Python workers look for the package too, also when it is tested without being installed.
    inherited = os.environ.get("PYTHONPATH")
    places = [str(ROOT), str(PRELOADING), *filter(None, [inherited])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark-lance tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Every query describes its plan for a page that nobody sees: in few words.
        .config("spark.sql.ui.explainMode", "simple")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        # What a worker has run is told when it ends; those that are used again are killed in the end.
        .config("spark.python.worker.reuse", "false" if os.environ.get("COVERAGE_RUN") else "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    _SHARED.append(session)
    _BEGAN_WITH.append(untouched.state(session))
    yield session
    _SHARED.clear()
    session.stop()
