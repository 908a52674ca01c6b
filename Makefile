# Every target does all that it needs on a fresh clone: virtual environment, install, run.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install conformance again kill-matrix test check bench clean

install: $(STAMP)

conformance: $(STAMP)
	BIN=$(BIN)/ ci/conformance.sh build/conformance suites/ -n auto

# Not one outcome may change from one run to the next.
again: TIMES ?= 20
again: $(STAMP)
	$(BIN)/python ci/again.py $(TIMES) build/again suites/ -n auto

kill-matrix: $(STAMP)
	$(BIN)/everyrank kill-matrix -n auto

test: $(STAMP)
	$(BIN)/pytest tests/ -n auto

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p everyrank

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --config-settings editable_mode=strict --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
