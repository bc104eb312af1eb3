# make demo   the guard at work on the examples
# make check  the checks and the quick tests; for every day
# make test   the checks and the whole suite
# make platforms  the quick tests on macOS and Windows, simulated
# make hosts  install the heavy libraries, too, whose tests `make test` leaves out without them
# make skipped  run again what the last `make test` skipped, once what it lacked is installed
# make truth  the suite with nothing taken as known; then tests/recorded is what it found
# make versions  the matrix of versions, one environment at a time, which takes hours; CELLS=...
#                chooses some, LAST_FAILED=1 only the tests that failed in them when they were run
#                last; docs/versions.md is then what it found
# make corners   the oldest and the newest of what installs fast; two minutes
# make newest    fail where a framework has a release that the matrix does not end at
# make releases  make the matrix anew from what the package index offers
# make docs   the documentation site, in .venv/site
# make lint   the checks alone
# make dist   the sdist and the wheel of a release, checked, in dist
# make bench  what all of it costs, against benchmarks/budget.toml; a quarter of an hour on a quiet machine
# make fuzz   thousands of programs, objects and files drawn at random, each judged; some minutes
# make peers  the suites of joblib, scikit-learn, skorch, ..., without the guard and with it; an hour
# make mutants  small changes of the code, and which of them no test notices; a quarter of an hour on a
#                quiet machine; PART=guard for the guard's decisions
# make faults  each function of the guard made to raise in turn; an hour
# make clean  remove what these made

# The newest Python on the path that can run this; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo $$python && break; done)
# The suite starts thousands of processes: byte code is kept, also where the user's own is not.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: demo check platforms test skipped hosts truth versions corners newest releases docs lint dist \
	bench fuzz faults mutants peers clean

# Findings fail no test here: the report is what the demo is about, the examples are as they are.
demo: .venv/demo.stamp
	$(BIN)/python -m pytest --gradguard --gradguard-fail-on=never --disable-warnings examples

TESTS := $(BIN)/python -m pytest -p no:asyncio -n 2

# More processes than cores, on two of them: some tests wait for what may hang.
test: .venv/dev.stamp lint
	$(TESTS) -n 3 --write-skipped=.venv/skipped.txt

skipped: .venv/dev.stamp
	$(TESTS) @.venv/skipped.txt

# Of every code a program that has it and one that does not; the engine and the rules of the
# linter; what is patched, and undone.
QUICK := tests/lint tests/reports tests/catalogue tests/cli/test_main.py \
	tests/cli/test_explain_rules.py tests/runtime/test_patching.py \
	tests/runtime/test_references.py tests/runtime/test_contexts.py tests/gradients/test_names.py

SLOW := tests/lint/test_pre_commit.py tests/reports/test_in_a_browser.py \
	tests/lint/test_programs.py::test_the_standard_library_is_read_without_a_fault \
	tests/lint/test_repairs.py::test_repaired_programs_have_what_was_lost

check: .venv/dev.stamp lint
	$(TESTS) -q $(SLOW:%=--deselect %) $(QUICK)

# Without the programs of the catalogue: those of GG203, GG303 and GG304 fork by default.
platforms: .venv/dev.stamp
	for platform in darwin win32; do \
		GRADGUARD_SIMULATED=$$platform PYTHONPATH=$(CURDIR)/tests/platforms \
			$(TESTS) -q $(SLOW:%=--deselect %) $(filter-out tests/catalogue,$(QUICK)) || exit 1; \
	done

hosts: .venv/hosts.stamp

TRUTH := GRADGUARD_TRUTH=anew GRADGUARD_TEST_CACHE=.venv/truth

truth: .venv/dev.stamp
	rm -rf .venv/truth
	$(TRUTH) $(TESTS)
	$(TRUTH) PYTHONPATH=tests $(BIN)/python -c "import shared_results; shared_results.record()"

NOX := .venv/nox/bin/nox

versions: .venv/nox.stamp
	$(NOX) $(if $(CELLS),--sessions $(CELLS),--tags versions) \
		$(if $(LAST_FAILED),-- --last-failed); status=$$?; \
		$(BIN)/python docs/make_versions.py > docs/versions.md; exit $$status

corners: .venv/nox.stamp
	$(NOX) --tags corners

newest: .venv/nox.stamp
	.venv/nox/bin/python tests/versions/releases.py --check

releases: .venv/nox.stamp
	.venv/nox/bin/python tests/versions/releases.py

docs: .venv/dev.stamp
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs .venv/site
	@echo "The site is .venv/site/index.html"

lint: .venv/dev.stamp
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

dist: .venv/dev.stamp
	$(BIN)/python .ci/release.py build dist

# ONLY="lint start" measures these sections alone
bench: .venv/dev.stamp
	$(BIN)/python benchmarks/bench.py $(if $(ONLY),--only $(ONLY))

# SEED, PROGRAMS, OBJECTS and FILES choose others: make fuzz OBJECTS=30000 SEED=7
FUZZ_SEED = $(or $(SEED),$$(date +%s))
fuzz: .venv/dev.stamp
	PYTHONPATH=tests $(BIN)/python tests/oracle/fuzz.py \
		$(if $(SEED),--seed $(SEED)) --programs $(or $(PROGRAMS),300)
	$(BIN)/python tests/fuzz/containers.py $(FUZZ_SEED) $(or $(OBJECTS),3000)
	PYTHONPATH=tests $(BIN)/python tests/fuzz/linter.py $(FUZZ_SEED) $(or $(FILES),2000) $$(mktemp -d)

# PROGRAMS names some of the programs: make faults PROGRAMS="pool loader". One that was interrupted
# goes on where it was, as long as no source has changed.
faults: .venv/dev.stamp
	PYTHONPATH=tests/faults $(BIN)/python tests/faults/sweep.py $(PROGRAMS)
	PYTHONPATH=tests/faults $(BIN)/python tests/faults/sweep.py $(PROGRAMS) --kind any --sample 20
	PYTHONPATH=tests/faults $(BIN)/python tests/faults/installs.py 10000

# SAMPLE, SEED, PART and ONLY choose others: make mutants SAMPLE=60 SEED=7 PART=guard ONLY=random/
mutants: .venv/dev.stamp
	PYTHONPATH=tests:tests/faults $(BIN)/python tests/mutants $(or $(PART),lint) \
		$(if $(SEED),--seed $(SEED)) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(ONLY),--only $(ONLY))

# SUITES chooses some: make peers SUITES="joblib loky"; RECORD=1 writes what docs/peers.md is made
# of; RESUME=1 goes on where it was stopped
peers: .venv/peers.stamp
	$(BIN)/python tests/peers $(SUITES) $(if $(RECORD),--record) $(if $(RESUME),--resume)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .gradguard_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "Python 3.10 or newer is needed; name it: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# In an environment of its own, so that it needs nothing else.
.venv/nox.stamp: .venv/pyvenv.cfg
	$(BIN)/python -m venv .venv/nox
	.venv/nox/bin/python -m pip --disable-pip-version-check -qq install --upgrade pip nox
	@touch $@

# torch first and by itself: asked for by its exact version it comes in the build for CPUs where
# there is one, which later requirements then keep.
.venv/torch.stamp: .venv/pyvenv.cfg constraints.txt
	@echo "Installing torch into .venv; this takes a few minutes."
	$(PIP) install "$$(grep '^torch==' constraints.txt)"
	@touch $@

.venv/demo.stamp: .venv/torch.stamp pyproject.toml
	$(PIP) install -c constraints.txt --editable . joblib numpy
	@touch $@

.venv/dev.stamp: .venv/demo.stamp requirements-dev.txt requirements-plugins.txt \
		requirements-release.txt
	@echo "Installing what the tests need into .venv; this takes a few minutes."
	$(PIP) install -r requirements-dev.txt
	@# the schema of SARIF stands in the sources of its object model alone
	$(PIP) download --no-deps --no-binary :all: --dest .venv/schemas sarif-om==1.0.4
	@# in a folder of their own, so that only the tests that want them load them
	rm -rf .venv/plugins
	$(PIP) install --no-deps --target .venv/plugins -r requirements-plugins.txt
	@touch $@

.venv/hosts.stamp: .venv/dev.stamp requirements-hosts.txt
	@echo "Installing the heavy libraries into .venv; this takes a few minutes."
	$(PIP) install -r requirements-hosts.txt
	@touch $@

.venv/peers.stamp: .venv/dev.stamp requirements-peers.txt
	rm -rf .venv/peers
	$(PIP) install --no-deps --target .venv/peers/packages -r requirements-peers.txt
	@touch $@
