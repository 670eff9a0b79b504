# Everything a newcomer needs: `make demo`, `make run`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Of pytest, each with a Postgres and a broker of its own; `make test LANES=` runs one test after the other.
LANES := -n 2 --dist loadfile
TESTS := tests --ignore tests/real_model --ignore tests/clients

.DEFAULT_GOAL := help

.PHONY: help install demo run test chaos test-model engines test-engines test-clients browser check docs fmt model clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(VENV)/.installed ## make .venv and install Magnus with its tools

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Magnus needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	@echo "Installing Magnus and its tools into $(VENV): a few minutes, about 2 GB"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install ## start everything, send 240 requests, print what happened, stop everything
	$(BIN)/magnus demo

run: install ## keep the service up and print its addresses
	$(BIN)/magnus up

# The browser tests need a Chromium, the only thing of the suite that no wheel brings. `browser` looks for one and, if
# there is none, installs Debian's package (as root) or Playwright's build. Where neither can be had, the suite runs all
# the same: the browser tests then fail, none is skipped, and each says what to install.
# Threads of torch that wait would spin, on cores that the other lane needs.
test check: export OMP_WAIT_POLICY = passive
test: install ## the whole test suite, on a Postgres and a broker of its own
	-@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest $(TESTS) $(LANES)

chaos: install ## break a whole service in every way that is promised to be survived (an hour; results in chaos.json)
	$(BIN)/python -m benchmarks.chaos --json chaos.json

test-model: install ## fetch the real models and test with them (175 MB are downloaded once)
	$(BIN)/magnus model fetch smollm2
	$(BIN)/magnus model fetch minilm
	$(BIN)/python -m pytest tests/real_model

engines: install ## build the environments of vLLM and llama.cpp under .magnus/engines (2.5 GB, minutes)
	$(BIN)/python -m benchmarks.outside_engines.engine_environments

test-engines: engines ## one suite over our engine, transformers serve, vLLM and llama.cpp
	$(BIN)/python -m pytest tests/engines --engines all

test-clients: install ## the tools of docs/clients.md, each in an environment of its own under .magnus/clients (3 GB, minutes)
	$(BIN)/python -m pytest tests/clients

browser: install ## find a Chromium for the browser tests, or fetch one
	$(BIN)/python -m tests.browser.chromium

check: install ## ruff, mypy --strict, import walls, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/unit --cov --cov-fail-under=100 $(LANES)

docs: install ## the documentation as a site, in build/site
	@$(BIN)/python -c 'import mkdocs' 2> /dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

fmt: install ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

model: install ## train the bundled model again from seeded synthetic text (minutes)
	$(BIN)/python -m inference.toy.toy_training

clean: ## remove the virtual environment and the local state
	rm -rf $(VENV) .magnus build *.egg-info
