# Set up, test, lint and document the project. Each target installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test slow lint types check browser bare package docs site clean

help:  ## List the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## Create the virtual environment with pinned dependencies.

# torch is installed first, so that everything that depends on torch accepts the pinned build.
$(READY): pyproject.toml constraints.txt
	@echo "1/3 a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "2/3 torch, as constraints.txt pins it (the largest part: minutes on a slow line)"
	@$(PIP) torch
	@echo "3/3 Elman with all of its extras, and the tools for tests"
	@$(PIP) -e '.[all,dev]'
	@touch $(READY)

demo: $(READY)  ## From nothing to a language model in two minutes: perplexities and samples.
	$(BIN)/python examples/demo.py

test: lint types check  ## Lint, type-check and test.

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# A file's tests share what its fixtures make, so they run in one process; the long files come first.
check: $(READY) browser
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

slow: $(READY)  ## Run the tests that `test` leaves out because they take long.
	$(BIN)/python -m pytest -m slow

# Playwright's own browsers are a separate download; Debian's Chromium works and needs only apt. On
# other machines install Chromium, curl, nginx and npm by hand; without them these tests are skipped.
browser: examples/browser/node_modules  ## Install what the tests in a browser need: Chromium, curl and nginx where apt may be used, and npm packages.
	@if command -v chromium >/dev/null && command -v curl >/dev/null && test -x /usr/sbin/nginx; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update && apt-get -qq install --no-install-recommends chromium curl nginx-light >/dev/null && exit 0; \
	fi; \
	echo "no Chromium, no curl or no nginx here: tests that need them will be skipped" >&2

examples/browser/node_modules: examples/browser/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix examples/browser --no-audit --no-fund --ignore-scripts >/dev/null; \
	else echo "no npm here: the test of the page in examples/browser will be skipped" >&2; fi

bare:  ## Install without extras in a second environment and import every module.
	test -x .venv-bare/bin/python || $(PYTHON) -m venv .venv-bare
	.venv-bare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-bare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	.venv-bare/bin/python tests/bare_install.py

package: $(READY)  ## Install the wheel and the sdist in new environments, on each Python of this machine; try them.
	$(BIN)/python -m pytest -m slow tests/e2e/test_package.py

docs: $(READY)  ## Write the generated reference pages and src/elman/__init__.pyi.
	$(BIN)/python docs/generate.py

site: $(READY)  ## Build the documentation as a web site in site/; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:  ## Remove the environments and caches.
	rm -rf $(VENV) .venv-bare examples/browser/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis build site
