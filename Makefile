# headrace: `make run` for tokens, `make test` for every check.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
# Hundreds of processes of ours that the tests start would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
NATIVE_SOURCES := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

# What pip and ninja say, as one moving line on a terminal; all of it is in the log if they fail.
define with_progress
@mkdir -p $(STAMPS)
@$(1) 2>&1 | tee $(STAMPS)/pip.log | while read -r word what _; do \
    case "$$word" in \
      Collecting) line="$${what%%[=<>;]*}" ;; \
      Installing) line="unpacking" ;; \
      \[*/*\]) line="compiling $$word" ;; \
      *) continue ;; \
    esac; \
    if [ -t 1 ]; then printf '\r\033[K      %s' "$$line"; fi; \
  done || { echo; tail -n 40 $(STAMPS)/pip.log; exit 1; }
@if [ -t 1 ]; then printf '\r\033[K'; fi
endef

.PHONY: run setup test tools lint format types layers unit e2e reference docs release lock clean

run: setup
	@exec $(BIN)/headrace up --demo

setup: $(STAMPS)/installed

# mypy is one process, which beside the tests takes what they leave of the cores.
test: $(STAMPS)/dev tools lint layers
	@$(MAKE) --no-print-directory -j2 types unit
	@$(MAKE) --no-print-directory e2e

$(STAMPS)/venv: requirements/runtime.lock
	@echo "[1/3] creating $(VENV) and installing the pinned packages (about a minute, once)"
	@$(PYTHON) -c 'import sys; sys.exit("headrace needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' || { echo "Python has no venv module: install it with: apt-get install python3-venv"; exit 1; }
	@command -v g++ >/dev/null || { echo "no C++ compiler: install one with: apt-get install g++"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; p = os.path.join(sysconfig.get_path("include"), "Python.h"); sys.exit(0 if os.path.exists(p) else "Python.h is missing: install it with: apt-get install python3-dev")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call with_progress,$(PIP) --require-hashes -r requirements/runtime.lock)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/installed: $(STAMPS)/venv pyproject.toml $(NATIVE_SOURCES)
	@echo "[2/3] building the C++ kernels and installing headrace"
	$(call with_progress,PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --verbose --no-build-isolation --no-deps --editable .)
	@touch $@
	@echo "[3/3] ready: $(BIN)/headrace"

$(STAMPS)/dev: $(STAMPS)/installed requirements/dev.lock
	@echo "installing the development packages"
	$(call with_progress,$(PIP) --require-hashes -r requirements/dev.lock)
	@touch $@

# What the tests use beside Python packages: continuous integration installs it, people are told.
# PyTorch is the oracle of the model families; it comes without hashes because its builds differ.
TOOLS := chromium:chromium postgres:postgresql redis-server:redis-server promtool:prometheus ip:iproute2 \
  aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static
tools: $(STAMPS)/dev
	@for tool in $(TOOLS); do \
	  program=$${tool%%:*}; package=$${tool##*:}; \
	  command -v $$program >/dev/null || ls /usr/lib/postgresql/*/bin/$$program >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ] && [ -n "$$CI" ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	elif [ -n "$$missing" ]; then echo "tests that need these are skipped; to run them: apt-get install$$missing"; fi
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' \
	  || { test -n "$$CI" && $(PIP) --quiet torch==2.13.0 accelerate==1.15.0; } \
	  || echo "PyTorch is not here, so comparisons with transformers are skipped: $(BIN)/pip install torch==2.13.0 accelerate==1.15.0"

lint: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMPS)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMPS)/dev
	$(BIN)/mypy

layers: $(STAMPS)/dev
	$(BIN)/lint-imports

# Files in the order of tests/conftest.py: those that take long first, not those of many tests.
PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

unit: $(STAMPS)/dev
	$(PYTEST) -m "not e2e" --ignore=tests/e2e -n auto

# What starts processes waits for half of its time.
e2e: $(STAMPS)/dev
	$(PYTEST) -m e2e -n 3 tests/e2e tests/contract

reference: $(STAMPS)/dev # writes the generated pages, rules and dashboards anew
	$(BIN)/python -m headrace.cli.reference_pages cli > docs/reference/cli.md
	$(BIN)/python -m headrace.cli.reference_pages errors > docs/reference/errors.md
	$(BIN)/python -m headrace.observability.reference_page > docs/reference/metrics.md
	$(BIN)/python -m headrace.observability.alert_rules > deploy/prometheus/headrace.rules.yml
	$(BIN)/python -m headrace.observability.dashboards deploy/grafana
	$(BIN)/python -m headrace.adapters.reference_page > docs/reference/engines.md
	$(BIN)/python -m headrace.control.admin.reference_page > docs/reference/admin-api.md
	$(BIN)/python -m headrace.engine_server.reference_page > docs/reference/api.md
	$(BIN)/python -m headrace.weights.reference_page > docs/reference/models.md
	$(BIN)/python docs/figures/draw.py

docs: $(STAMPS)/dev # the documentation site, in build/site
	$(BIN)/mkdocs build --strict

# dist/: the wheel, what it is made of and how it was made, signed where RELEASE_KEY names a key.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: $(STAMPS)/dev
	rm -rf dist && mkdir dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/python tools/bill_of_materials.py dist/*.whl > dist/bom.json
	$(BIN)/python tools/provenance.py make dist/*.whl dist/bom.json $(if $(RELEASE_KEY),--key $(RELEASE_KEY)) > dist/provenance.json

lock: # writes the lock files anew; needs `uv` on the PATH
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra build pyproject.toml -o requirements/runtime.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra build --extra dev pyproject.toml -o requirements/dev.lock

clean:
	rm -rf $(VENV) $(STAMPS) build dist
