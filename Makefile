# make quickstart: environment, install, train, evaluate, export, show.   make test: environment, install, all tests.
# Needs Python 3.10 or newer, make, and the package registry (torch: CPU build or whatever the registry has).

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: quickstart install test lint types format clean

quickstart: $(VENV)/.installed-quickstart
	$(BIN)/python -m modeling_cmlmcse.quickstart $(QUICKSTART)

install: $(VENV)/.installed-dev

$(VENV)/.installed-%: setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

test: $(VENV)/.installed-dev lint types
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info
