PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: setup demo test test-slow lint docs bench bench-setup results-page clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/nghvi demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# Fits that take minutes each: every response through everything after the fit, and the like.
test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(READY)
	$(BIN)/ruff format --check nghvi tests benchmarks docs
	$(BIN)/ruff check nghvi tests benchmarks docs
	$(BIN)/python tests/check_file_sizes.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $(DOCS_READY)

bench: $(READY) $(BENCH_READY)
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.fuzz
	$(BIN)/python -m benchmarks.paper_rules
	$(BENCH)/bin/python -m benchmarks step-cost
	$(BENCH)/bin/python -m benchmarks run
	$(BIN)/python -m benchmarks.paper_networks
	$(BIN)/python -m benchmarks.network_step
	$(BIN)/python -m benchmarks.network_calibration
	$(BENCH)/bin/python -m benchmarks deep

bench-setup: $(BENCH_READY)

# Pages from rows and tables that are there; nothing is run.
results-page: $(READY)
	$(BIN)/python -m nghvi.paper.studies.results_page experiments/results docs/reproduction.md --anew
	$(BIN)/python -m benchmarks.measured_page

# The peers have an environment of their own: their pins are not the library's.
$(BENCH_READY): benchmarks/requirements.txt pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(BENCH_READY)

clean:
	rm -rf $(VENV) .venv-bench demo build dist docs/_build
