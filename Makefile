# Each target does its own set-up: a fresh clone needs nothing but python3 (≥ 3.10) and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
SCALE ?= laptop
FIGURES ?=
OVERRIDES ?=
RUNS ?= runs
LAUNCHER ?= joblib
BIN := $(VENV)/bin
SUITE := $(VENV)/.suite
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup reproduce figures report test peer-test bench lint format clean

help: ## show this help
	@echo "make TARGET [SCALE=smoke|laptop|paper] [FIGURES=\"name …\"] [OVERRIDES=\"key=value …\"] [RUNS=folder] [LAUNCHER=name]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY) ## virtual environment with everything installed (all targets do what they need of this themselves)

# torch comes first and pinned, so that nothing else pulls in another build of it.
$(SUITE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[experiments]'
	touch $@

$(READY): $(SUITE)
	$(PIP) --editable '.[dev]'
	touch $@

reproduce: $(if $(filter joblib,$(LAUNCHER)),$(SUITE),$(READY)) ## train what the figures need, draw them, judge the claims; resumable
	$(BIN)/python -m experiments.reproduce --scale $(SCALE) $(FIGURES) "runs='$(RUNS)'" hydra/launcher=$(LAUNCHER) $(OVERRIDES)

figures: $(SUITE) ## redraw figures from logs alone
	$(BIN)/python -m analysis.draw $(FIGURES) --runs '$(RUNS)' --scale $(SCALE)

report: $(SUITE) ## judge the claims and write the report from logs alone; COMPARE=other/runs shows two sets of logs
	$(BIN)/python -m analysis.report --runs '$(RUNS)' --scale $(SCALE) $(if $(COMPARE),--compare '$(COMPARE)')

test: $(READY) ## the whole test suite
	$(BIN)/python -m pytest -q

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
	rm -rf figures report build *.egg-info .mypy_cache .ruff_cache .pytest_cache
