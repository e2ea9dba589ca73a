# Every target sets up what it needs; only python3 (3.11 or newer) and make have to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.PHONY: help install browser demo test test-timm test-wheel mutants lint types docs docs-serve benchmark figures clean

help:
	@echo "make demo       set up, then train a network with exits, compare exit methods, write a report"
	@echo "make test       set up, then lint, types, tests and doctests"
	@echo "make test-timm  the checks on models of timm and torchvision, in an environment of their own"
	@echo "make test-wheel build the wheel, and try it in an environment outside of this folder"
	@echo "make mutants    change the decision core at random, and see what tests notice; ROOM=thresholds SAMPLE=60 MINUTES=15"
	@echo "make docs       set up, then build the documentation site into site/; docs-serve shows it"
	@echo "make install    set up only, in .venv"
	@echo "make benchmark  set up, then the speed and memory benchmarks (about ten minutes)"
	@echo "make figures    write the tables of README, docs and paper from the JSON files that commands wrote"
	@echo "make clean      remove .venv and caches"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml paper/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "offramp needs Python 3.11 or newer; name one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev]' -e ./paper
	@touch $@

demo: install
	$(BIN)/offramp demo

# The page's tests need a browser; it is installed where that is allowed, and missed nowhere else.
browser:
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing Debian's chromium for the tests of the report"; \
		apt-get update -qq >/dev/null 2>&1; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1 || \
			echo "chromium could not be installed; its tests are skipped"; \
	fi

# A cluster takes both cores to start in time, so its tests come after all others.
test: lint types browser
	$(BIN)/pytest -q -n auto -m 'not cluster and not wheel'
	$(BIN)/pytest -q -m cluster tests

# torchvision beside the CPU build of torch breaks other libraries, so it gets its own environment.
test-timm: install .venv-timm/.installed
	$(BIN)/pytest -q tests/networks/test_other_libraries.py

.venv-timm/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[timm,torchvision]'
	@touch $@

# Only the wheel and its own files: the libraries are those of .venv, which saves their installation.
test-wheel: install
	$(BIN)/pytest -q -m wheel tests/test_wheel.py

# Not in CI: a sample of 60 changes takes minutes by room. The rooms are named in pyproject.toml.
mutants: install
	$(BIN)/python tools/mutants.py $(ROOM) --sample $(or $(SAMPLE),60) --minutes $(or $(MINUTES),15)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Material prints a notice about its own future with every build.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

docs: install
	$(BIN)/mkdocs build --strict

docs-serve: install
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8001

benchmark: install
	$(BIN)/python benchmarks/posthoc.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/input.py
	$(BIN)/python benchmarks/runtime.py --profile

figures: install
	$(BIN)/python tools/figures.py

clean:
	rm -rf $(VENV) .venv-timm .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
