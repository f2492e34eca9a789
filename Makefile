# Two commands on a fresh machine: `make quickstart` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETS ?=

.PHONY: quickstart test test-slow crosscheck lint install install-dev warm-start clean

quickstart: install
	$(BIN)/ragen-lab sweep sweeps/quickstart.yaml $(SETS)

test: install-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow"

test-slow: install-dev
	$(BIN)/python -m pytest -m slow

# Losses and advantages against TRL, in a folder of its own: TRL's needs must not decide ours.
crosscheck: install-dev
	@test -d $(VENV)/crosscheck || $(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/crosscheck \
		trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0
	PYTHONPATH=$(VENV)/crosscheck $(BIN)/python -m pytest tests/algo/test_trl.py

lint: install-dev
	$(BIN)/ruff check . && $(BIN)/mypy

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# The lock holds for everything but a torch that is already there: pyproject.toml decides whether it will do.
$(VENV)/lock.txt: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -c "import torch" 2>/dev/null; then grep -v '^torch==' constraints.txt > $@; else cp constraints.txt $@; fi

$(VENV)/.installed: $(VENV)/lock.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/lock.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/lock.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/lock.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

# Rebuilds the checkpoint that the package ships for the quickstart (about two minutes on one core).
warm-start: install
	OMP_NUM_THREADS=1 $(BIN)/python -c "from ragen_lab.warm_start import ship; ship('experiments/frozen_lake_edge.yaml')"

clean:
	rm -rf $(VENV) .ragen-lab reports/out

docs: install
	$(BIN)/python docs/make_reference.py
.PHONY: docs
