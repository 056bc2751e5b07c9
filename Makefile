# Everything on a fresh machine: python3 >= 3.11, make and pip are enough.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.PHONY: demo test test-extras mutants lint types docs package clean

demo: $(VENV)/cli
	$(BIN)/localsgd compare --task digits --methods mini-batch local post-local hierarchical \
	  --topology 4x2 --local-steps 2 4 --epochs 20 --evaluate-every 2 --processes 2 \
	  --out "$(or $(OUT),runs/demo)"

test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile $(ARGS)

# The frameworks are large, so they get an environment of their own.
test-extras:
	@$(MAKE) --no-print-directory VENV=$(VENV)-extras $(VENV)-extras/extras
	$(VENV)-extras/bin/python -m pytest -n $(or $(JOBS),2) --dist loadfile \
	  tests/integrations tests/logs tests/results tests/cli/test_exporting.py \
	  tests/docs/test_sweeps_and_logging.py tests/cli/test_fault_tolerant.py $(ARGS)

mutants: $(VENV)/dev
	$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

docs: $(VENV)/docs
	$(BIN)/python tools/site.py
	$(BIN)/zensical build --strict --clean
	$(BIN)/python tools/site.py check

package: $(VENV)/release
	rm -rf dist
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tools/smoke.py dist

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "localsgd needs Python 3.11 or newer; name one by make PYTHON=..."; exit 2; }
	@echo "Making an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  { $(PYTHON) -m pip install --quiet --target $(VENV)/boot virtualenv && \
	    PYTHONPATH=$(VENV)/boot $(PYTHON) -m virtualenv --quiet $(VENV); }
	@touch $@

$(VENV)/cli: $(VENV)/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing localsgd with its command line"
	@$(INSTALL) -e '.[cli]'
	@touch $@

$(VENV)/dev: $(VENV)/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing localsgd with its tests and tools"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/cli

$(VENV)/extras: $(VENV)/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing localsgd with its tests and the frameworks that it works in"
	@$(INSTALL) -e '.[test,transformers,lightning,torchft,tensorboard,wandb,mlflow,frames]'
	@touch $@

$(VENV)/docs: $(VENV)/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing what builds the documentation"
	@$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/release: $(VENV)/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing what builds and checks the packages"
	@$(INSTALL) -e '.[release]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-extras build dist .pytest_cache .ruff_cache
