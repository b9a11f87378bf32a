# Each target does its own set-up: a fresh clone needs nothing but python3 (≥ 3.11) and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
SCALE ?=
FIGURES ?=
OVERRIDES ?=
RUNS ?=
LAUNCHER ?= joblib
BIN := $(VENV)/bin
LOGS = $(if $(RUNS),--runs "$(RUNS)") $(if $(SCALE),--scale $(SCALE))
SUITE := $(VENV)/.suite
READY := $(VENV)/.ready
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# A torchvision built for another torch cannot be imported, and transformers, if it sees one, cannot be either.
DROP_IF_BROKEN := $(BIN)/python -c 'import torchvision' 2>/dev/null || { echo "torchvision does not work with this torch: \
left out, MNIST is fetched without it"; $(BIN)/python -m pip uninstall --quiet --yes --disable-pip-version-check torchvision; }
# The suite is no part of the wheel; workers, wherever they start, import it from this clone.
IMPORTABLE := $(BIN)/python -c 'import pathlib, sysconfig; \
pathlib.Path(sysconfig.get_path("purelib"), "kondo_suite.pth").write_text("$(CURDIR)\n")'
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11) and "error: %s is Python %d.%d, and kondo needs 3.11 or \
newer: remove $(VENV) if it is there and add PYTHON=/path/to/python3.11" % ((sys.executable,) + sys.version_info[:2]))

.DEFAULT_GOAL := help
.PHONY: help setup reproduce figures report results docs verify test test-fast peer-test bench lint format clean

help: ## show this help
	@echo "make TARGET [SCALE=smoke|laptop|paper] [FIGURES=\"name …\"] [OVERRIDES=\"key=value …\"] [RUNS=folder] [LAUNCHER=name]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## virtual environment with everything installed (all targets do what they need of this themselves)

# torch comes first and pinned, so that nothing else pulls in another build of it.
$(SUITE): pyproject.toml constraints.txt
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) -c '$(NEW_ENOUGH)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[experiments]'
	@$(DROP_IF_BROKEN)
	@$(IMPORTABLE)
	touch $@

$(READY): $(SUITE)
	$(PIP) --editable '.[dev]'
	@$(DROP_IF_BROKEN)
	touch $@

$(DOCS): $(SUITE)
	$(PIP) --editable '.[docs]'
	touch $@

reproduce: $(if $(filter joblib,$(LAUNCHER)),$(SUITE),$(READY)) ## train what the figures need, draw them, judge the claims; resumable
	$(BIN)/python -m experiments.reproduce --scale $(or $(SCALE),laptop) $(FIGURES) "runs='$(or $(RUNS),runs)'" hydra/launcher=$(LAUNCHER) $(OVERRIDES)

figures: $(SUITE) ## redraw figures from logs alone: those in runs/, or the published ones in results/
	$(BIN)/python -m analysis.draw $(FIGURES) $(LOGS)

report: $(SUITE) ## judge the claims and write the report from logs alone; COMPARE=other/runs shows two sets of logs
	$(BIN)/python -m analysis.report $(LOGS) $(if $(COMPARE),--compare "$(COMPARE)")

results: $(SUITE) ## pages of the published results, docs/results/, and the README's table
	$(BIN)/python -m analysis.results

docs: $(DOCS) ## the documentation as a site, site/index.html: strict, links checked, no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

verify: $(SUITE) ## retrain N=10 published runs, or the cheapest that MINUTES=… allow, and compare; SEED=… draws others
	$(BIN)/python -m experiments.verify $(if $(RUNS),--results "$(RUNS)") $(if $(N),--number $(N)) \
	$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

test: $(READY) ## the whole test suite, one process per core
	$(BIN)/python -m pytest -q -n auto --dist loadfile

test-fast: $(READY) ## the tests that take no more than a few seconds each
	$(BIN)/python -m pytest -q -m "not slow"

peer-test: $(READY) ## run the tests that kondo-gate 0.1.0 published against kondo
	$(BIN)/python -m tests.peer

bench: $(READY) ## speed against the peer and against ourselves, as ratios, in one run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps kondo-gate==0.1.0
	$(BIN)/python -m experiments.bench

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff tidy the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what can be remade quickly; logs in runs/ stay
	rm -rf figures report site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
