# Everything a fresh machine with make and Python >= 3.11 needs. `make help` lists the targets.
# Uses uv when it is there, else venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What a machine happens to run must not be used by the demo or the tests; and what they import is compiled once.
ALONE := env -u PYTHONDONTWRITEBYTECODE -u DATABASE_URL -u REDIS_URL -u CELERY_BROKER_URL -u FLUJO_DATABASE_URL -u FLUJO_BROKER_URL \
	-u FLUJO_STATE_URI -u FLUJO_RESULT_BACKEND_URL -u FLUJO_CONFIG_PATH
# Processes that test side by side. They share one Postgres and one Redis, and each takes whole files (tests/support/forking.py). Acceptance
# tests wait more than they compute: hence more processes than a small machine has cores.
TEST_PROCESSES ?= 6
SIDE_BY_SIDE := --forks $(TEST_PROCESSES)
SEEDS ?= 301 302 303
DEFAULT := not chaos and not pages and not release and not integrations and not browser and not compat and not rabbit

.DEFAULT_GOAL := help
.PHONY: help requirements settings lock demo test test-slow test-pools test-integrations test-npm test-browser rabbit stopwatch pictures test-fast coverage laws audit check lint types imports bench bench-compare bench-peers bench-flame bench-aros bench-client bench-growth bench-page bench-recovery bench-rates provider-week races fuzz chaos chaos-network chaos-streams chaos-beside durability-beside compat compat-lowest docs pages release-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml requirements.lock
	@echo "installing $$(grep -c '^[a-z0-9]' requirements.lock) packages into $(VENV): a minute or two, and once" >&2
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
		uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --require-hashes -r requirements.lock && \
		uv pip install --quiet --python $(BIN)/python --no-deps --editable .; \
	else \
		$(PYTHON) -m venv $(VENV) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .; \
	fi
	@$(BIN)/python -m compileall -q flujo_client flujo_worker
	@touch $@

requirements: $(STAMP) ## print each requirement with the tests that name its id
	@$(ALONE) $(BIN)/python tests/architecture/requirements_page.py

settings: $(STAMP) ## write the tables of docs/reference/configuration.md and metrics.md anew from the code
	@$(ALONE) $(BIN)/python tests/architecture/settings_table.py
	@$(ALONE) $(BIN)/python tests/architecture/metrics_table.py

lock: ## write requirements.lock and the locks of tests/compat anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra ag-ui --extra live --extra worker --extra aop-extra --extra embedded --extra encryption --extra metrics --extra otel --extra schedules --extra ui --group dev --group integrations --group browser --universal --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --quiet --upgrade --output-file requirements.lock
	@$(PYTHON) -m tests.compat.environments

demo: $(STAMP) ## audit the licence of every installed distribution: the main job, for real
	@$(ALONE) $(BIN)/flujo demo --kill

test: $(STAMP) ## the tests; they start the services they need
	@$(BIN)/python -m compileall -q flujo_client flujo_worker
	@$(ALONE) $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --hypothesis-profile brief --ignore=tests/typing -m "not large and not installation and $(DEFAULT)"

test-slow: $(STAMP) ## the greatest sizes, and what sets up services, projects and the demo as users do
	@$(ALONE) $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "(large or installation) and $(DEFAULT)"

test-pools: $(STAMP) ## the acceptance tests with Celery's pools: threads, and prefork
	@$(ALONE) TEST_POOL=threads $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests/acceptance
	@$(ALONE) TEST_POOL=prefork $(BIN)/python -m pytest -q --forks 2 tests/acceptance # each of its workers is five processes

test-integrations: $(STAMP) ## workers beside the real packages that users run with them, such as Sentry's
	@$(ALONE) $(BIN)/python -m pytest -q --forks 2 -m integrations tests/integrations

test-npm: $(STAMP) ## the official clients of AG-UI and Vercel's AI SDK (npm) follow runs whose workers are killed; skipped where npm is not installed
	@$(ALONE) $(BIN)/python -m pytest -q -m integrations tests/integrations/test_npm_clients.py

stopwatch: $(STAMP) ## a team's Django project on Celery 5.4 becomes durable by ten lines: the time of each command; and dropped connections
	@$(ALONE) $(BIN)/python -m pytest -q -s -m integrations tests/stopwatch

test-browser: $(STAMP) ## a fleet that stops in many ways: each sentence about a run, and the page in Chromium where that is installed
	@$(ALONE) $(BIN)/python -m pytest -q -m browser tests/page

rabbit: $(STAMP) ## RabbitMQ as the broker, without Redis; skipped where no rabbitmq-server is installed
	@$(ALONE) $(BIN)/python -m pytest -q -m rabbit tests/acceptance/test_rabbitmq.py

pictures: $(STAMP) ## take the pictures of the page in docs/ anew; needs Chromium
	@$(ALONE) PYTHONPATH=tests/page $(BIN)/python -m pictures

test-fast: $(STAMP) ## the tests that start no process, without AROS and the greatest sizes, and with few examples of each law
	@$(BIN)/python -m compileall -q flujo_client flujo_worker
	@$(ALONE) $(BIN)/python -m pytest -q --forks 3 --hypothesis-profile fast \
		-m "not services and not acceptance and not processes and not large and not installation and $(DEFAULT)" \
		tests/unit tests/laws tests/conformance tests/architecture

coverage: $(STAMP) ## which lines and branches the unit tests and those of AROS run: a table, and htmlcov/
	@$(ALONE) $(BIN)/python -m pytest -q -n auto --dist loadfile --hypothesis-profile fast \
		-m "not services and not acceptance and not large and not installation and $(DEFAULT)" \
		--cov --cov-report=term:skip-covered --cov-report=html tests/unit tests/aros

laws: $(STAMP) ## search for what breaks the laws, at 2000 random examples of each and in 8000 simulated schedules
	@$(ALONE) FLUJO_EXAMPLES=2000 \
		$(BIN)/python -m pytest -q -o timeout=0 -n $(TEST_PROCESSES) --dist load --hypothesis-profile search \
		--ignore=tests/laws/test_laws_simulation.py tests/aros/test_aros_laws.py tests/laws \
		tests/unit/client/test_trace.py tests/unit/client/test_results_containers.py
	@$(ALONE) FLUJO_EXAMPLES=8000 \
		$(BIN)/python -m pytest -q -o timeout=0 --hypothesis-profile search tests/laws/test_laws_simulation.py
	@$(ALONE) $(BIN)/python -m pytest -q -o timeout=0 -n $(TEST_PROCESSES) --hypothesis-profile search -m hypothesis tests/unit tests/conformance

docs: $(STAMP) ## build the documentation site into site/; a broken link or anchor is an error
	@$(BIN)/zensical build --strict

pages: $(STAMP) ## follow every page of the documentation in an empty folder, with the wheel alone
	@$(ALONE) $(BIN)/python -m pytest -q -m pages -n $(TEST_PROCESSES) --dist worksteal tests/pages

release-check: $(STAMP) ## build wheel and sdist into dist/, try each in a clean environment, and write a bill of materials
	@$(ALONE) $(BIN)/python -m pytest -q -m release tests/pages

audit: $(STAMP) ## licences and pins of dependencies, and known vulnerabilities if pip-audit is on PATH
	@$(BIN)/python -m pytest -q tests/architecture/test_dependencies.py
	@if command -v pip-audit >/dev/null 2>&1; then \
		pip-audit --strict --disable-pip --require-hashes -r requirements.lock; \
	else \
		echo "vulnerabilities were not looked up: pip-audit is not on PATH"; \
	fi

check: lint types imports docs test test-slow test-integrations compat-lowest stopwatch rabbit test-browser pages ## what CI runs

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/typing

imports: $(STAMP)
	@$(BIN)/lint-imports

bench: $(STAMP) ## ratios against bare Celery, as a table and JSON; BENCH="--rounds 3 --only W2" chooses
	@$(ALONE) $(BIN)/python -m tests.bench $(BENCH)

bench-compare: $(STAMP) ## the same workloads by turns in this tree and in another revision: BASE=revision
	@test -n "$(BASE)" || { echo "make bench-compare BASE=revision"; exit 2; }
	@$(ALONE) $(BIN)/python -m tests.bench --base $(BASE) $(BENCH)

bench-peers: $(STAMP) ## W1, W2, W3 and W7 by turns with other projects, each from wheels in an environment of its own
	@$(ALONE) $(BIN)/python -m tests.bench --peers $(BENCH)

bench-flame: $(STAMP) ## a flame graph of a worker while W2 runs; needs py-spy
	@$(ALONE) $(BIN)/python -m tests.bench.flame $(BENCH)

bench-aros: $(STAMP) ## what AROS costs, and how it compares; RIVALS=folder adds what is installed there
	@$(ALONE) $(BIN)/python -m tests.bench.aros $(if $(RIVALS),--rivals $(RIVALS))

bench-client: $(STAMP) ## what enqueue costs, alone and in bulk, and how late results come
	@$(ALONE) $(BIN)/python -m tests.bench.client

bench-growth: $(STAMP) ## a million ended runs, a loop and a fan-out of 10 000, a held snapshot, 100 000 steps, idle workers, retention; BENCH="--only fans" chooses
	@$(ALONE) PYTHONPATH=tests/conformance $(BIN)/python -m tests.bench.growth $(BENCH)

bench-page: $(STAMP) ## the page: times and statements of each, with a million runs and a run of 100 000 attempts
	@$(ALONE) $(BIN)/python -m tests.bench.page $(BENCH)

bench-rates: $(STAMP) ## how much of a provider's rate limits eight workers use, over real HTTP, and how many calls are refused; BENCH="--only workers"
	@$(ALONE) PYTHONPATH=tests/acceptance $(BIN)/python -m tests.bench.rates $(BENCH)

provider-week: $(STAMP) ## a provider's ordinary week (429, 500, cut, slow and broken answers) for two workers on a loaded machine; BENCH="--runs 50"
	@$(ALONE) PYTHONPATH=tests/acceptance $(BIN)/python -m tests.bench.provider_week $(BENCH)

bench-recovery: $(STAMP) ## how long after kill -9 of its worker a step runs again, quiet and under load
	@$(ALONE) $(BIN)/python -m tests.bench.recovery
	@$(ALONE) $(BIN)/python -m tests.bench.recovery --elsewhere
	@$(ALONE) $(BIN)/python -m tests.bench.recovery --busy 20
	@$(ALONE) $(BIN)/python -m tests.bench.recovery --busy 20 --elsewhere

races: $(STAMP) ## every race between two statements, 120 times each
	@$(ALONE) FLUJO_RACE_ROUNDS=120 $(BIN)/python -m pytest -q -o timeout=0 tests/conformance -k race

fuzz: $(STAMP) ## mutated messages, values, blueprints, expressions, templates and answers, a minute each; FUZZ="--seconds 600 --seed 7 --only aros" chooses
	@$(ALONE) PYTHONPATH=tests/fuzz $(BIN)/python -m fuzz_run $(FUZZ)

chaos: $(STAMP) ## the longest tests, then flujo chaos: break services and workers at random; CHAOS="--seed 7 --duration 600" chooses
	@$(ALONE) $(BIN)/python -m pytest -q -m chaos
	@$(ALONE) $(BIN)/flujo chaos $(CHAOS)

chaos-network: $(STAMP) ## flujo chaos --network for each seed, into chaos-network.json; CHAOS="--duration 60" SEEDS="1 2" chooses; namespaces and a full disk need root
	@for seed in $(SEEDS); do \
		$(ALONE) $(BIN)/flujo chaos --network --json --duration 600 --seed $$seed $(CHAOS) || exit; \
	done | tee chaos-network.json

chaos-streams: $(STAMP) ## readers that disconnect while streams are trimmed, Redis is wiped and workers are killed, in five minutes; STREAM_ROUNDS=200 STREAM_SEED=7 chooses
	@$(ALONE) $(BIN)/python -m pytest -q -n 0 -m chaos tests/acceptance/test_stream_chaos.py

chaos-beside: $(STAMP) ## the same faults on Celery, DBOS, pgtask, Procrastinate, Absurd and LangGraph from wheels; BESIDE="--seed 3 --only DBOS" chooses
	@$(ALONE) $(BIN)/python -m tests.chaos_beside $(BESIDE)

durability-beside: $(STAMP) ## durable agents killed on Flujo Worker, and on DBOS, Prefect and pgtask from wheels; BESIDE="--only DBOS --case usage" chooses
	@$(ALONE) $(BIN)/python -m tests.durability $(BESIDE)

compat: $(STAMP) ## Celery 5.3.6 to 5.7, each in an environment of its own, and the page that says what was shown; COMPAT="--only 5.4.0" chooses
	@$(ALONE) $(BIN)/python -m tests.compat $(COMPAT)

compat-lowest: $(STAMP) ## the same with the oldest Celery alone, in a minute
	@$(ALONE) $(BIN)/python -m tests.compat --lowest

clean: ## remove what the targets made
	@rm -rf $(VENV) .flujo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache .coverage* htmlcov site
