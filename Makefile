# headrace: `make run` for tokens, `make test` for every check.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
NATIVE_SOURCES := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

.PHONY: run setup test browser lint format types layers unit e2e lock clean

run: setup
	exec $(BIN)/headrace up --demo

setup: $(STAMPS)/installed

test: $(STAMPS)/dev browser lint types layers unit e2e

$(STAMPS)/venv: requirements/runtime.lock
	@echo "[1/3] creating $(VENV) and installing the pinned packages (about a minute, once)"
	@$(PYTHON) -c 'import sys; sys.exit("headrace needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' || { echo "Python has no venv module: install it with: apt-get install python3-venv"; exit 1; }
	@command -v g++ >/dev/null || { echo "no C++ compiler: install one with: apt-get install g++"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; p = os.path.join(sysconfig.get_path("include"), "Python.h"); sys.exit(0 if os.path.exists(p) else "Python.h is missing: install it with: apt-get install python3-dev")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.lock
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/installed: $(STAMPS)/venv pyproject.toml $(NATIVE_SOURCES)
	@echo "[2/3] building the C++ kernels and installing headrace"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@
	@echo "[3/3] ready: $(BIN)/headrace"

$(STAMPS)/dev: $(STAMPS)/installed requirements/dev.lock
	@echo "installing the development packages"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

browser: # the console's tests drive it; continuous integration installs it, people are told
	@command -v chromium >/dev/null || { test -n "$$CI" && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is not here, so the console's browser tests are skipped: apt-get install chromium"

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

unit: $(STAMPS)/dev
	$(BIN)/pytest -m "not e2e"

e2e: $(STAMPS)/dev
	$(BIN)/pytest -m e2e

lock: # writes the lock files anew; needs `uv` on the PATH
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra build pyproject.toml -o requirements/runtime.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra build --extra dev pyproject.toml -o requirements/dev.lock

clean:
	rm -rf $(VENV) $(STAMPS) build dist
