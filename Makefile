PYTHON ?= python3
BIN := .venv/bin
CONSTRAINTS := constraints.txt
RUN_STAMP := .venv/.run-ready
DEV_STAMP := .venv/.dev-ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

# One torch thread per process: two on two busy cores cost a factor of ten and more.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0
export NO_MKDOCS_2_WARNING ?= 1

.PHONY: run test test-federation check bench docs setup release clean help

help:
	@echo "make run    compare CRAFT and craft-auto with FedAvg, FedAvgM and ConFIG on real data (no network needed)"
	@echo "make test   run the tests        make check  ruff, mypy, import contract"
	@echo "make bench  measure speed        make docs   build the documentation site"
	@echo "make setup  only the environment make release  build wheel and sdist, install and try both"

run: $(RUN_STAMP)
	$(BIN)/fedcraft compare

test: $(DEV_STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-federation: $(DEV_STAMP)
	$(BIN)/python -m pytest -q -m federation

check: $(DEV_STAMP)
	$(BIN)/ruff check --no-cache src tests benchmarks  # a stale cache once hid an error
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.methods

docs: $(DEV_STAMP)
	$(BIN)/mkdocs build --strict

setup: $(DEV_STAMP)

release:
	PYTHON=$(PYTHON) .ci/release

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedcraft needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv

$(RUN_STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "Setting up .venv (once; a few minutes) ..."
	$(INSTALL) hatchling editables
	$(INSTALL) --no-build-isolation -e '.[report,data]'
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo "Adding what the tests need (once) ..."
	$(INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
