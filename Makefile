# make run: the default config, from data to report. make test: the tests; make test-all: the slow
# ones too, with types checked everywhere. make lint: the quality gates. make docs: the
# documentation, into docs/_build/html; its tutorials are run, once for each state of pcv. make
# docs-fast: without running them, into docs/_build/fast. make bench: pcv beside loops over folds, an
# hour or more (PROBLEMS="rats wells": of some), which installs nutpie and particles.
# Each builds .venv from requirements.lock first, if it is not there.
PYTHON ?= python3
CORES ?= all
CONFIG ?=
PROBLEMS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: run test test-all lint docs docs-fast bench clean-venv

run: $(VENV)/.ready
	@$(BIN)/snakemake --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))

test: $(VENV)/.ready
	$(BIN)/pytest

test-all: $(VENV)/.ready
	$(BIN)/pytest -m "slow or not slow" --jaxtyping-packages=pcv,beartype.beartype

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow pcv/pipeline/cli/templates
	$(BIN)/snakemake --lint

docs: $(VENV)/.ready
	$(BIN)/sphinx-build --fail-on-warning --keep-going docs docs/_build/html

docs-fast: $(VENV)/.ready
	$(BIN)/sphinx-build --fail-on-warning --keep-going -D nb_execution_mode=off docs docs/_build/fast

bench: $(VENV)/.ready
	@$(BIN)/python -c "import nutpie" 2>/dev/null || $(PIP) nutpie
	@$(BIN)/python -c "import particles" 2>/dev/null || $(PIP) --no-deps particles
	$(BIN)/python -W ignore -m benchmarks.bench $(PROBLEMS)
	$(if $(PROBLEMS),,$(BIN)/python -W ignore -m benchmarks.scaling)
	$(if $(PROBLEMS),,$(BIN)/python -W ignore -m benchmarks.evidence)
	$(BIN)/python -m benchmarks.page

version = $(shell $(PYTHON) -c 'import sys; v = sys.version_info; print("new" if v >= (3, 12) else "is %d.%d" % v[:2])' 2>/dev/null || echo does not run)
advice = install one, and name it: make PYTHON=python3.12 $(or $(MAKECMDGOALS),run)

$(VENV)/.ready: requirements.lock pyproject.toml
	$(if $(filter new,$(version)),,$(error pcv needs Python 3.12 or newer, and $(PYTHON) $(version): $(advice)))
	@echo "Installing what pcv needs into $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

clean-venv:
	rm -rf $(VENV)
