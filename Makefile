# Set-up, demonstration and checks. A fresh machine needs python3 (3.11 or later) and make:
#   make demo       make test       make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
MADE := $(VENV)/.made-$(VERSION)
INSTALLED := $(VENV)/.installed-$(VERSION)
INSTALLED_DEV := $(VENV)/.installed-dev-$(VERSION)
INSTALLED_ALL := $(VENV)/.installed-all-$(VERSION)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo test test-all check clean

help:
	@echo 'make demo       install, then smoke test, screen and train sasrec on generated data (2 ranks, or all GPUs)'
	@echo 'make test       install what the tests need, run the everyday ones'
	@echo 'make test-all   the slow ones and those for a GPU, too'
	@echo 'make check      lint, format and types'
	@echo 'make clean      remove the environment and caches; runs and data stay'

demo: $(INSTALLED)
	@ranks='launch.nproc=2'; \
	if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then ranks=; fi; \
	set -x; $(BIN)/paceline play p0-p3 $$ranks --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# Files side by side, in the order of their names: the default begins with those that have most tests, and ends with the longest ones.
test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n auto --dist loadfile --no-loadscope-reorder

# The slow ones two at a time, since they wait as much as they compute; those for a GPU one after the other, which have it to themselves.
test-all: $(INSTALLED_ALL)
	$(MAKE) test
	$(BIN)/python -m pytest -m 'slow and not gpu' -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m gpu

check: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find paceline tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment made by another Python is made anew; one by the same Python is kept.
$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Paceline needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "  do:    name another one, such as make PYTHON=python3.12 demo" >&2; exit 1; }
	@if [ ! -e $(VENV) ] || [ -x $(BIN)/python$(VERSION) ]; then fresh=; else fresh=--clear; fi; \
	set -x; $(PYTHON) -m venv $$fresh $(VENV)
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(MADE)
	@echo "installing into $(VENV): a minute or two"
	@$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(MADE)
	@echo "installing into $(VENV), with what the tests need: a minute or two"
	@$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(INSTALLED)

$(INSTALLED_ALL): pyproject.toml constraints.txt | $(MADE)
	@echo "installing into $(VENV), with everything that is optional: two or three minutes"
	@$(PIP) install --quiet -c constraints.txt -e '.[dev,examples,deepspeed,search,stacks]'
	@touch $@ $(INSTALLED_DEV) $(INSTALLED)
