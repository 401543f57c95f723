# Each target sets up what it needs on a fresh machine, and runs the built wheel, not the source tree.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL) -c constraints.txt
CODE := src lab tests examples benchmarks docs/playground
# make bench REV=v0.1.0 puts another revision beside this tree; the last tag by default
REV ?=
# the oldest versions that pyproject.toml promises
OLDEST_PYTHON ?= python3.11
OLDEST_TORCH ?= torch==2.8.*
# the newest of everything, without constraints.txt
NEWEST_PYTHON ?= python3.13

.PHONY: demo test warm lint bench docs tables site coverage test-oldest test-newest wheel clean

demo: $(VENV)/cpu-ready wheel
	$(BIN)/hardnet demo

# all cores compile the kernels that all tests share, beside the look at the sources; then a worker has a thread
test: $(VENV)/dev-ready wheel
	$(MAKE) -j 2 lint warm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n 2 --dist worksteal --durations=10

warm:
	$(BIN)/hardnet warmup > /dev/null

lint: $(VENV)/dev-ready
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/basedpyright
	PYTHONPATH=src $(BIN)/lint-imports --no-logo
	$(BIN)/codespell $(CODE) docs README.md CONTRIBUTING.md CHANGELOG.md

# us, our last revision and the peers in one run; the peers have an environment of their own
bench: .venv-bench/ready
	PYTHONPATH=src:lab/src .venv-bench/bin/python -m benchmarks closed-form --revision '$(REV)' --out results/bench/closed_form_cpu.json --device cpu
	PYTHONPATH=src:lab/src .venv-bench/bin/python -m benchmarks nearest-point --revision '$(REV)' --out results/bench/nearest_point_cpu.json --device cpu
	PYTHONPATH=src:lab/src .venv-bench/bin/python -m benchmarks.box_rows --out results/bench/box_rows_cpu.json
	PYTHONPATH=src:lab/src .venv-bench/bin/python -m benchmarks cliffs --out results/bench/cliffs_cpu.json --device cpu

docs: tables site

tables: $(VENV)/docs-ready wheel
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python -m benchmarks.pictures

site: $(VENV)/docs-ready wheel tables
	$(BIN)/python docs/playground/fetch_runtime.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

coverage: $(VENV)/dev-ready wheel
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n 2 --dist worksteal --cov=hardnet --cov=hardnet_lab --cov-report=json:build/coverage.json
	$(BIN)/python -m benchmarks.coverage build/coverage.json results/coverage.json

test-oldest: .venv-oldest/ready
	rm -rf build/lib
	.venv-oldest/bin/python $(INSTALL) --no-deps --force-reinstall . -e ./lab
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest tests -n 2 --dist worksteal

test-newest: .venv-newest/ready
	rm -rf build/lib
	.venv-newest/bin/python $(INSTALL) --no-deps --force-reinstall . -e ./lab
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest tests -n 2 --dist worksteal

# the library is built and installed anew each time, the laboratory as it lies here; dependencies only when they change
wheel: $(VENV)/python-ready
	rm -rf build/lib  # or the wheel would hold modules that are gone
	$(PIP) --no-deps --force-reinstall . -e ./lab

$(VENV)/python-ready:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/%-ready: $(VENV)/python-ready pyproject.toml lab/pyproject.toml constraints.txt
	$(PIP) '.[$*]' ./lab
	touch $@

.venv-bench/ready: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python $(INSTALL) -c constraints.txt '.[bench]' ./lab
	touch $@

.venv-oldest/ready: pyproject.toml lab/pyproject.toml constraints.txt
	$(OLDEST_PYTHON) -m venv .venv-oldest
	mkdir -p build && grep -v '^torch==' constraints.txt > build/constraints-oldest.txt
	.venv-oldest/bin/python $(INSTALL) -c build/constraints-oldest.txt '$(OLDEST_TORCH)' '.[dev]' ./lab
	touch $@

.venv-newest/ready: pyproject.toml lab/pyproject.toml
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/python $(INSTALL) --upgrade '.[dev]' ./lab
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-oldest .venv-newest build dist runs src/*.egg-info lab/build lab/src/*.egg-info
