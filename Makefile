PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint bench bench-setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/nghvi demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff format --check nghvi tests benchmarks
	$(BIN)/ruff check nghvi tests benchmarks
	$(BIN)/python tests/check_file_sizes.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.calibration

clean:
	rm -rf $(VENV) .venv-bench demo build dist
