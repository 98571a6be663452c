# make run: the default config, from data to report. make test: the tests. Both build .venv first.
PYTHON ?= python3
CORES ?= all
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test lint bench clean-venv

run: $(VENV)/.ready
	$(BIN)/snakemake --cores $(CORES)

test: $(VENV)/.ready
	$(BIN)/pytest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 12) or sys.exit("pcv needs Python 3.12 or newer, and $(PYTHON) is %d.%d: install a newer one, or name it: make PYTHON=python3.12 run" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

clean-venv:
	rm -rf $(VENV)
