# Two targets do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
NODE := $(VENV)/.node
LINTERS := $(VENV)/.linters
# Neighbours stay together and share their fixtures; who is done takes from another's end. One more
# than there are processors, since some tests wait for a clock or for a server that hangs.
PARALLEL := -n 3 --dist worksteal
# One file or its data is read of these; what they require is heavy, or older than what we use.
WITHOUT_REQUIREMENTS := lifelines obp jax-privacy

.PHONY: help demo test coverage lint audit faults device-time clean bench bench-local bench-ridge
.PHONY: bench-store bench-service bench-aggregate bench-day serve web arena ablation
.PHONY: vectors tree docs example-report real screenshot
.DEFAULT_GOAL := help
# Tests start a hundred processes: none of them shall compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:
# The last bits of a product differ between kinds of processors, and with them the path of a seeded run.
ifeq ($(shell uname -m),x86_64)
test coverage audit: export OPENBLAS_CORETYPE = Haswell
endif

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m pip install virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e ".[dev]" -e "./lab[studies,real]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--no-deps $(WITHOUT_REQUIREMENTS)
	touch $@

demo: $(READY)  ## CAPRI against uniform play and a non-private run: a table and a picture
	$(BIN)/capri demo

serve: $(READY)  ## a decision service for an example shop, on this machine alone: http://127.0.0.1:8017/
	$(BIN)/capri serve examples/service/policy.toml --insecure-local --forecast

web: $(READY) $(NODE)  ## a page that decides on the device and learns from 32 bytes a reader: http://127.0.0.1:8018/site/
	PATH="$$($(BIN)/python tools/node_path.py):$$PATH" node examples/web/build.mjs build/web
	@echo "open http://127.0.0.1:8018/site/"
	$(BIN)/capri serve examples/web/policy.toml --insecure-local --port 8018 --site build/web

lint: $(READY)  ## style, types and import layers: ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Chromium for the page of `capri-lab report`; where it cannot be had, its test is skipped, in CI failed.
$(BROWSER): tools/install_browser.sh | $(READY)
	sh tools/install_browser.sh
	touch $@

# Node and the pinned tools of clients/js; where they cannot be had, its tests are skipped, in CI failed.
$(NODE): tools/install_node.sh clients/js/package-lock.json | $(READY)
	sh tools/install_node.sh $(BIN)/python
	touch $@

# What checks examples/deploy; where it cannot be had, its test is skipped, in CI failed.
$(LINTERS): tools/install_linters.sh | $(READY)
	sh tools/install_linters.sh "$$(cd $(VENV) && pwd)/linters"
	touch $@

test: lint $(BROWSER) $(NODE) $(LINTERS)  ## everything CI checks, in under five minutes on two idle cores
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not slow"

coverage: $(READY) $(BROWSER) $(NODE) $(LINTERS)  ## the same tests with the lines they reach: twice as long
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not slow" \
		--cov --cov-report=term

audit: $(READY)  ## attack the real pipeline, and broken ones that must be caught: half an hour and more
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "slow or hypothesis" \
		--hypothesis-profile=thorough tests
	OPENBLAS_NUM_THREADS=1 $(BIN)/capri audit --model joint --output audit-joint.png
	OPENBLAS_NUM_THREADS=1 $(BIN)/capri audit --model local --preset paper --output audit-local.png
	OPENBLAS_NUM_THREADS=1 $(BIN)/capri audit --model device

faults: $(READY)  ## 1,000 kills on each store, bad networks, clocks and disks: nothing is lost or counted twice
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/faults/run_faults.py --kills 1000
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/local/crashes.py --kills 200
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/faults/ledger_crashes.py --schedules 1000

device-time: $(READY)  ## search 2,000 bundles for one that tells users apart by time: half an hour
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/device_time.py --bundles 2000

bench: $(READY)  ## regret, rivals, time and memory, under twenty minutes on two idle cores
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/regret.py --functions 10
	$(BIN)/python benchmarks/rivals.py

arena: $(READY)  ## CAPRI and every rival on three problems, with what each promises
	$(BIN)/capri-lab arena --seeds 3 --wide

bench-local: $(READY)  ## devices: regret of a million users, bytes and milliseconds
	$(BIN)/python benchmarks/local.py --functions 10
	$(BIN)/python benchmarks/local_table.py

bench-store: $(READY)  ## the durable store: speed against bare SQL, locks, memory of pending decisions
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/pending.py

bench-service: $(READY)  ## the service: speed against a bare endpoint, two workers, a closing epoch
	$(BIN)/python benchmarks/service.py

bench-aggregate: $(READY)  ## reports from files: time, memory and disk up to 1e8, one worker and two
	$(BIN)/python benchmarks/aggregate.py

bench-day: $(READY)  ## a day in the life of the service: its regret, restarts and all, to that of one process
	$(BIN)/python benchmarks/service_day.py

bench-ridge: $(READY)  ## private regression: accuracy against epsilon, rivals on real tables, time and memory; hours
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[benchmarks]"
	$(BIN)/python benchmarks/ridge.py
	$(BIN)/python benchmarks/ridge_rivals.py
	$(BIN)/python benchmarks/ridge.py --speed

ablation: $(READY)  ## what each option of the practical preset is worth
	$(BIN)/python benchmarks/ablation.py

vectors: $(READY)  ## clients/vectors: write the test vectors of the wire format anew
	$(BIN)/python tests/local/vectors.py

tree: $(READY)  ## draw the trees of product and laboratory in docs/design.md anew
	$(BIN)/python tools/draw_tree.py

docs: $(READY)  ## build/docs: these pages as a site, searchable offline, with a reference of every public name
	$(BIN)/python -m sphinx -W -b html -q docs build/docs
	@echo "open build/docs/index.html"

example-report: $(READY)  ## docs/example-report: the rivals at reduced size, a few minutes
	$(BIN)/capri-lab run docs/example-report/rivals-small.toml --output build/example
	$(BIN)/capri-lab report build/example/rivals-small -o docs/example-report/report.html

real: $(READY)  ## CAPRI that is told nothing, on real data: its report and table in docs; hours
	$(BIN)/capri-lab run real --output build
	mkdir -p docs/real-report
	$(BIN)/capri-lab report build/real -o docs/real-report/report.html
	$(BIN)/python tools/real_table.py build/real

screenshot: $(READY) $(BROWSER) $(NODE)  ## the pictures of the report, of the service's page and of the reading list
	CAPRI_SCREENSHOT=docs/figures/report.png $(BIN)/pytest -q tests/lab/report/test_browser.py -k screenshot
	CAPRI_SCREENSHOT=docs/figures/service.png $(BIN)/pytest -q tests/service/test_page.py -k screenshot
	CAPRI_SCREENSHOT=docs/figures/web.png $(BIN)/pytest -q tests/service/test_web.py -k screenshot

clean:  ## remove the environment and caches
	rm -rf $(VENV) clients/js/node_modules clients/js/dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
