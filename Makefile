# Everything the project can do to itself. Each target sets up what it needs, on a fresh machine too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test lint types check bare docs clean

help:  ## List the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## Create the virtual environment with pinned dependencies.

# torch goes in first: with it in place, whatever else asks for torch is content with the pinned build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	touch $(READY)

demo: $(READY)  ## From nothing to a language model in two minutes: perplexities and samples.
	$(BIN)/python examples/demo.py

test: lint types check  ## Lint, type-check and test.

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/python -m pytest -n 2

bare:  ## Install without extras in a second environment and import every module.
	test -x .venv-bare/bin/python || $(PYTHON) -m venv .venv-bare
	.venv-bare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-bare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	.venv-bare/bin/python tests/bare_install.py

docs: $(READY)  ## Write the generated reference pages.
	$(BIN)/python docs/generate.py

clean:  ## Remove the environments and caches.
	rm -rf $(VENV) .venv-bare .mypy_cache .pytest_cache .ruff_cache .hypothesis build
