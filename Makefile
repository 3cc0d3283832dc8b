# Two commands do everything on a fresh machine:   make demo   make test

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c 'import venv' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test check bench clean

demo: $(VENV)/ready
	@$(BIN)/regard demo

test: $(VENV)/ready check
	$(BIN)/python -m pytest -n auto

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m bench maps
	$(BIN)/python -m bench attention

# torch first and pinned: a bare requirement would bring another build, gigabytes larger
$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "regard needs Python 3.11 or later with the venv module: install it, or make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
