# make plan   set up .venv and answer the README's example
# make quick  the tests to run all day: none of more than about a second, no kept answers or traces
# make test   set up .venv with the test tools and run the tests, one process a core
# make alone  the tests with servers, browsers and ranks of their own, one by one
# make long   the tests that tests/long.txt lists: long, and on what others test as well
# make coverage  make test, with the lines that no test but those of servers and ranks reaches
# make floors  the quick tests on the oldest releases that pyproject.toml allows, in build/floors
# make newest  the quick tests on the newest releases, in build/newest
# make check  format, lint and types, as continuous integration runs them
# make hooks  let git run `make check` before every commit
# make app    set up .venv with the explorer and open it in a browser
# make accuracy DATA=FOLDER  score every measured run again, learn the intervals from them; writes
#                docs/reference/accuracy.md and docs/reference/learning.md
# make golden answer, draw, emit and print again what tests/golden keeps (only where it is meant to change)
# make questions  run every command of docs/howto/questions.md and write the answers there again
# make tutorials  run every command of docs/tutorials and README.md, write the outputs there again
# make picture  photograph the explorer's answer to the README's example: docs/assets/first.png (needs chromium)
# make docs   set up .venv with the site's tools and build the documentation into build/site
# make release  build wheel and source archive, check them, run both in empty environments
# make sbom   list every installed package with version, origin and license: dist/sbom.json
# make audit  look for known weaknesses of the installed packages; fails, and says so, where no index answers
# make faults run every command under every fault, write docs/reference/faults.md
# make traces  trace 1008 layouts with torch (20 minutes), write docs/reference/validation.md and kept.jsonl
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
# processes that tests start read compiled modules, also where the environment would not keep them
unexport PYTHONDONTWRITEBYTECODE
# more processes than this collect longer than they test
CORES := --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: plan quick test alone long coverage floors newest check hooks app accuracy golden questions tutorials picture docs release sbom audit faults traces clean

plan: .venv/installed
	$(BIN)/planner plan mistral-7b --machine vsc-5 --nodes 2 --seq-length 4096 --global-batch 64

quick: .venv/tested
	$(PYTEST) $(CORES) -m "not slow and not broad"

test: .venv/tested
	$(PYTEST) $(CORES) -m "not alone and not long" $(COVER)

# servers and ranks have time limits: nothing runs beside them
alone: .venv/tested
	$(PYTEST) -m "alone and not long" $(shell grep -rl mark.alone tests --include=test_*.py | sort)

long: LONG := $(shell cut -d: -f1 tests/long.txt | sort -u)
long: .venv/tested
	$(PYTEST) $(CORES) -m "long and not alone" $(LONG)
	$(PYTEST) -m "long and alone" $(LONG)

coverage: COVER := --cov
coverage: test

floors:
	mkdir -p build
	$(PYTHON) -m tests.floors > build/floors.txt
	$(quick_tests_in)

newest:
	mkdir -p build
	: > build/newest.txt
	$(quick_tests_in)

# an environment of its own, with the constraints of its name, and the same torch first
define quick_tests_in
	$(PYTHON) -m venv --clear build/$@
	$(OWN_PIP) torch==2.13.0 setuptools wheel
	DS_BUILD_OPS=0 $(OWN_PIP) --no-build-isolation "deepspeed; sys_platform == 'linux'"
	$(OWN_PIP) --editable '.[app,evidence,sweep,dask,hub,torch,test]'
	build/$@/bin/python -m pytest $(CORES) -m "not slow and not broad"
endef
OWN_PIP = build/$@/bin/python -m pip install --quiet --constraint build/$@.txt

check: .venv/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.docstrings

hooks: .venv/tested
	$(BIN)/pre-commit install

app: .venv/explorer
	$(BIN)/planner app

accuracy: .venv/installed
	$(PIP) --editable '.[evidence]'
	$(BIN)/python benchmarks/accuracy.py --data $(DATA)
	$(BIN)/python benchmarks/learning.py

golden: .venv/tested
	$(BIN)/python -m tests.golden.write

questions: .venv/tested
	$(BIN)/python -m tests.questions

tutorials: .venv/tested
	$(BIN)/python -m tests.tutorials

picture: .venv/explorer
	$(PIP) playwright
	$(BIN)/python website/picture.py

# strict: a warning, a link or an anchor that leads nowhere ends it
docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python website/check_links.py build/site

release: .venv/installed
	$(PIP) build twine
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m tests.release

# pip's own report; without the extras of tests and documentation
sbom: .venv/installed
	mkdir -p dist
	$(BIN)/python -m pip inspect --local > dist/sbom.json

audit: .venv/installed
	@$(PIP) pip-audit 2> /dev/null || true
	@$(BIN)/python -m tests.audit

faults: .venv/tested
	$(BIN)/python benchmarks/faults.py --write

traces: .venv/tested
	$(BIN)/python benchmarks/trace_matrix.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/explorer: .venv/installed
	$(PIP) --editable '.[app]'
	@touch $@

.venv/documented: .venv/installed
	$(PIP) --editable '.[docs]'
	@touch $@

# torch first and by its exact version, so that no other package chooses a build of it; DeepSpeed
# looks for it while it is installed, and compiles its kernels only when they are used
.venv/tested: .venv/installed
	$(PIP) torch==2.13.0 setuptools wheel
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation "deepspeed; sys_platform == 'linux'"
	$(PIP) --editable '.[test,dev]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
