# make demo   set up and show FedETF beside FedAvg on embedded data
# make test   set up, lint, types, the documentation, all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is written when a module is first used: compiling all of torch up front doubles the time of an install.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile --disable-pip-version-check

# Where Python is told to write no bytecode, each process that imports torch would compile all of it again: 5 s, not 2.
unexport PYTHONDONTWRITEBYTECODE

# Each test has a limit (pyproject.toml); this one is for all of them, should pytest itself stand still.
PYTEST := $(if $(shell command -v timeout),timeout --foreground --signal=INT --kill-after=60 60m )$(BIN)/pytest \
	--numprocesses auto --dist loadgroup -rfEs

.PHONY: demo setup test fuzz coverage quick lint docs dist clean

demo: $(VENV)/core
	$(BIN)/fedetf demo

setup: $(VENV)/dev

test: setup
	$(MAKE) --jobs 2 --output-sync lint docs
	$(PYTEST) --durations 30

# Strangers' settings, command lines, files and messages: 10,000 new examples of each test, hours on two cores.
fuzz: setup
	FEDETF_FUZZ=10000 $(BIN)/pytest --numprocesses auto --dist loadgroup --timeout 0 -p no:cacheprovider $(wildcard tests/*/test_fuzz_*.py)

coverage: setup
	$(PYTEST) --cov --cov-report=term

quick: setup
	$(PYTEST) -m "not slow"

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Strict: a broken link or a docstring that cannot be read is an error. The variable silences an advertisement.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Wheel and sdist into dist/, tried out in empty environments: `fedetf demo`, `run` and `report`.
dist: setup
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist
	$(BIN)/python tools/check_dist.py dist

clean:
	rm -rf $(VENV) build dist src/*.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# What the package itself needs, and no more.
$(VENV)/core: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing fedetf into $(VENV), about a minute the first time"
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/core
	@echo "installing the development tools"
	$(PIP) --editable '.[dev]'
	@touch $@
