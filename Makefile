# Each target sets up what it needs on a fresh machine, and runs the built wheel, not the source tree.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test bench docs lint wheel clean

demo: $(VENV)/experiments-ready wheel
	$(BIN)/hardnet reproduce pwc --seeds 1-5 --out runs --resume
	$(BIN)/hardnet report runs

test: $(VENV)/dev-ready wheel lint
	$(BIN)/python -m pytest tests -n 2

lint: $(VENV)/dev-ready
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/basedpyright

bench: $(VENV)/bench-ready wheel
	$(BIN)/python -m benchmarks affine
	$(BIN)/python -m benchmarks projection
	$(BIN)/python -m benchmarks training

docs: $(VENV)/docs-ready wheel
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python -m benchmarks.pictures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the package itself is built and installed anew each time; its dependencies only when they change
wheel: $(VENV)/python-ready
	$(PIP) --no-deps --force-reinstall .

$(VENV)/python-ready:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/%-ready: $(VENV)/python-ready pyproject.toml constraints.txt
	$(PIP) '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs src/*.egg-info
