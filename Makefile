# Everything a newcomer needs: `make demo`, `make run`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Three test processes side by side, each with a Postgres and a broker of its own: on two cores, because half of a
# process's time is waiting. Long files come first (browser, e2e). `make test LANES=` runs one test after the
# other; `make test ORDER="--random-order --random-order-seed=7"` runs the files and their tests in another order.
LANES := -n 3 --dist loadfile --no-loadscope-reorder
ORDER :=
PYTEST = $(BIN)/python -m pytest $(LANES) $(ORDER)
# What `make test` leaves to `make test-all`: the real models, the clients of others and Triton need downloads of their own.
TESTS := tests --ignore tests/real_model --ignore tests/clients --ignore tests/kubernetes --ignore tests/gpu_kernels

.DEFAULT_GOAL := help

.PHONY: help install demo run test test-all test-long chaos test-model engines test-engines test-clients browser lint check \
	docs fmt model clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(VENV)/.installed ## make .venv and install Magnus with its tools

# pip says every package that it looks at; this passes on each tenth, the large downloads, and what goes wrong.
PIP_STEPS := awk '/^Collecting / && ++n % 10 == 1 { print "  package " n ": " $$2 } \
	/^ *Downloading .*\([0-9]{2,}(\.[0-9]+)? MB\)/ { print "  downloading " $$2 " " $$3 " " $$4 } \
	/^Installing collected/ { print "  writing " NF - 3 " packages to disk" } \
	/ERROR/ { print } { fflush() }'
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Magnus needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	@echo "Installing Magnus and its tools into $(VENV): two to five minutes, about 2 GB"
	@$(PYTHON) -m venv $(VENV)
	@echo "1 of 2: PyTorch"
	@set -o pipefail; $(PIP) "$$(grep '^torch==' constraints.txt)" | $(PIP_STEPS)
	@echo "2 of 2: everything else"
	@set -o pipefail; $(PIP) --constraint constraints.txt --editable '.[dev]' | $(PIP_STEPS)
	@touch $@

demo: install ## start everything, send 240 requests, print what happened, stop everything
	$(BIN)/magnus demo

run: install ## keep the service up and print its addresses
	$(BIN)/magnus up

# The browser tests need a Chromium, the only thing of the suite that no wheel brings. `browser` looks for one and, if
# there is none, installs Debian's package (as root) or Playwright's build. Where neither can be had, the suite runs all
# the same: the browser tests then fail, none is skipped, and each says what to install.
# Threads of torch that wait would spin, on cores that the other lane needs.
test test-long check: export OMP_WAIT_POLICY = passive
test: install ## the tests that a change is judged by: a few minutes, on a Postgres and a broker of its own
	-@$(BIN)/python -m tests.browser.chromium
	$(PYTEST) $(TESTS) -m "not long"

test-all: test test-long ## `make test`, then everything that takes longer: half an hour and some downloads

test-long: LANES := -n 2 --dist loadfile --no-loadscope-reorder
test-long: install ## what `make test-all` has beside `make test`
	$(PYTEST) $(TESTS) -m long
	$(BIN)/python -m pytest tests/unit/scheduling --cov --cov-fail-under=100 --quiet $(LANES)
	.ci/system-servers
	.ci/several-hosts
	.ci/cluster
	.ci/systemd-units
	.ci/alarms
	$(MAKE) docs test-model test-engines

chaos: install ## break a whole service in every way that is promised to be survived (two hours; table in chaos.md)
	$(BIN)/python -m pytest tests/chaos/test_promises.py --chaos long

test-model: install ## fetch the real models and test with them (175 MB are downloaded once)
	$(BIN)/magnus model fetch smollm2
	$(BIN)/magnus model fetch minilm
	$(BIN)/python -m pytest tests/real_model

engines: install ## build the environments of vLLM, llama.cpp and Triton under .magnus/engines (3.5 GB, minutes)
	$(BIN)/python -m benchmarks.outside_engines.engine_environments

test-engines: engines ## one suite over our engine, transformers serve, vLLM and llama.cpp; GPU kernels in Triton's interpreter
	$(BIN)/magnus model fetch minilm
	$(BIN)/python -m pytest tests/engines --engines all
	TRITON_INTERPRET=1 PYTHONPATH=$$(echo .magnus/engines/triton/lib/python*/site-packages) $(BIN)/python -m pytest tests/gpu_kernels

test-clients: install ## the tools of docs/clients.md, each in an environment of its own under .magnus/clients (3 GB, minutes)
	$(BIN)/python -m pytest tests/clients

browser: install ## find a Chromium for the browser tests, or fetch one
	$(BIN)/python -m tests.browser.chromium

lint: install ## ruff, mypy --strict, import walls
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## lint and the unit tests: before each commit
	$(PYTEST) tests/unit

docs: install ## the documentation as a site, in build/site
	$(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

fmt: install ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

model: install ## train the bundled model again from seeded synthetic text (minutes)
	$(BIN)/python -m inference.toy.toy_training

clean: ## remove the virtual environment and the local state
	rm -rf $(VENV) .magnus build *.egg-info
