# make sweep: measure a model on this machine.    make test: check offloadtune itself.
# Everything lives in .venv, except the engine's build: the user's cache keeps it for the next clone.

PYTHON ?= python3
SAMPLE := gguf_models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL ?= $(SAMPLE)
BUDGET ?= 60s

BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
RUNTIME := .venv/.runtime-installed
DEV := .venv/.dev-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # two pips at once would break the .venv

.PHONY: help sweep test bars clean engine

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'make sweep MODEL=$(MODEL) BUDGET=$(BUDGET)'
	@echo 'PYTHON=python3.12 chooses the Python, CMAKE_ARGS=... how the engine is built.'

sweep: engine ## install what is needed and measure MODEL within BUDGET; the answer lands in profiles/
ifeq ($(MODEL),$(SAMPLE))
	@$(BIN)/python -m offloadtune.install.samples smollm2
endif
	$(BIN)/offloadtune sweep '$(MODEL)' --budget '$(BUDGET)'

test: $(DEV) engine ## install what is needed, lint, check types, run all tests
	@$(BIN)/python -m offloadtune.install.samples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bars: $(DEV) engine ## run the slow benchmarks and the slow tests
	@$(BIN)/python -m offloadtune.install.samples
	@set -e; for bar in benchmarks/*.py; do \
	  if [ -e "$$bar" ]; then echo "$(BIN)/python $$bar"; $(BIN)/python "$$bar"; fi; \
	done
	$(BIN)/pytest -m slow

clean: ## remove .venv and the tools' caches; models, profiles and the engine's build stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

engine: $(RUNTIME)
	@$(BIN)/python -m offloadtune.install.engine

$(RUNTIME): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'offloadtune needs Python 3.11 or newer; name one: make sweep PYTHON=python3.12' >&2; exit 1; }
	@if [ ! -x $(BIN)/pip ]; then echo 'making .venv' >&2; $(PYTHON) -m venv .venv; fi
	@echo 'installing offloadtune and what it needs' >&2
	@$(PIP_INSTALL) --editable .
	@touch $@

$(DEV): pyproject.toml $(RUNTIME)
	@echo 'installing the tools for development' >&2
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
