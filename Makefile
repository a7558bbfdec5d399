# make inspect   set up .venv and audit this machine; the bundled example where it has no accelerator
# make test      the tests
# make bench     what an audit and the daemon cost, beside the goals; NODE_EXPORTER=PROGRAM to compare with
# make venv      set up .venv with everything that development needs
# make clean     remove what was built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check

.PHONY: inspect test bench venv clean

inspect: $(VENV)/.run
	@$(BIN)/python -m tools.make_inspect

test: $(VENV)/.develop
	$(BIN)/pytest

bench: $(VENV)/.develop
	@$(BIN)/python -m bench $(if $(NODE_EXPORTER),--node-exporter $(NODE_EXPORTER))

venv: $(VENV)/.develop

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'gpu-topo needs Python 3.10 or later: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.develop: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/.run

clean:
	rm -rf build dist *.egg-info .benchmarks .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
