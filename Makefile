# Each target sets up what it needs on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test bench docs lint clean

demo: $(VENV)/demo-ready
	$(BIN)/hardnet reproduce pwc --seeds 1-5 --out runs
	$(BIN)/hardnet report runs

test: $(VENV)/test-ready lint
	$(BIN)/python -m pytest tests -n 2

lint: $(VENV)/test-ready
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/basedpyright src

bench: $(VENV)/bench-ready
	$(BIN)/hardnet bench affine
	$(BIN)/hardnet bench projection
	$(BIN)/hardnet bench training

docs: $(VENV)/demo-ready
	$(BIN)/python -m hardnet.experiments.readme

$(VENV)/python-ready:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo-ready: $(VENV)/python-ready pyproject.toml constraints.txt
	$(PIP) -e '.[experiments]'
	touch $@

$(VENV)/test-ready: $(VENV)/python-ready pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/bench-ready: $(VENV)/python-ready pyproject.toml constraints.txt
	$(PIP) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs src/*.egg-info
