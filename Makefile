# Two commands: `make race` and `make test`. Both set up .venv themselves and need no root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help race test lint types bench clean

help: ## what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(INSTALLED): pyproject.toml constraints.txt
	@echo "regatta: setting up $(VENV), once (1 to 3 minutes, most of it PyTorch) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "regatta needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,synth]' \
		2>&1 | grep -v '^WARNING: Location' ; test -x $(BIN)/regatta
	@touch $@

RACED := single all-reduce averaging:period=16 ring parameter-server
TARGET := 0.5

race: $(INSTALLED) ## race five strategies on speech, two workers, five seeds each: a verdict and a report (3 minutes)
	@echo "regatta: making speech, then racing five strategies on two real workers, five seeds each (about 3 minutes) ..."
	@$(BIN)/regatta race frames --strategies "$(RACED)" --seeds 5 --target $(TARGET)

test: $(INSTALLED) ## lint, types and tests (15 to 35 minutes)
	@echo "regatta: lint, types and tests (15 to 35 minutes) ..."
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest -m "not real" -n 2
	@$(BIN)/pytest -m real

bench: $(INSTALLED) ## all benchmarks against peers and limits (about two hours, on a quiet machine)
	@$(BIN)/regatta bench all

clean: ## remove what was set up (runs are kept)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
