# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv first; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test lint docs bench paper

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV); this takes a minute or two, most of it for torch"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/installed-for-tests: $(VENV)/installed
	$(INSTALL) --editable '.[test]'
	touch $@

demo: setup
	$(BIN)/shakeproof demo

test: $(VENV)/installed-for-tests
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		echo "no browser is here: tests of the report's page will be skipped; to run them, apt-get install chromium"
	@echo "about 4,500 tests: 20 minutes on two cores, longer on a busy machine; a dot is a test"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/installed-for-docs: $(VENV)/installed
	$(INSTALL) --editable '.[docs]'
	touch $@

docs: $(VENV)/installed-for-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "open docs/_build/index.html"

# The paper's tables, cell by cell: ten seconds. make paper DATA=FOLDER looks for VNN-COMP's benchmarks there.
paper: $(VENV)/installed
	$(BIN)/python benchmarks/paper_tables.py $(if $(DATA),--data $(DATA))

bench: $(VENV)/installed
	$(BIN)/python benchmarks/speed.py $(ARGS)
	$(BIN)/python benchmarks/rows.py --minute
	$(BIN)/python benchmarks/bounds.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/cores.py
