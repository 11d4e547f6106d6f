# Every target sets the checkout up first (.venv, system packages); that is instant when nothing changed.
.DEFAULT_GOAL := help
PYTHON_FILES := $(wildcard lockstep services tests bench scripts)
python := .venv/bin/python
SEEDS ?= 300
START ?= 0
# Two workers; everything that starts processes runs in one of them, one test at a time (tests/conftest.py). The slowest are named.
PYTEST_ARGS ?= -n 2 --dist loadgroup --durations=40

.PHONY: help dev check format test test-full demo simulate simulate-coordinators simulate-hand-overs fuzz protos peers bench bench-full bench-peers bench-musts bench-sustained images compose-test

help: ## What there is
	@sed -n 's/^\([a-z%-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

dev: ## Set-up only: .venv and the system packages that tests use
	@scripts/setup.sh

check: dev ## Lint, format, types, import contracts, generated code
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy $(PYTHON_FILES)
	.venv/bin/lint-imports
	$(python) scripts/generate_protos.py --check

format: dev ## Put the files into the format that check asks for
	$(python) -m ruff check --fix-only --quiet .
	$(python) -m ruff format .

test: dev ## All tests
	@$(python) -m pytest $(PYTEST_ARGS)

test-full: dev ## All tests, and the long forms of those that have one
	@LOCKSTEP_TESTS=full $(python) -m pytest $(PYTEST_ARGS)

images: ## The images of deploy/compose.yaml; needs a Docker engine
	@deploy/build-images.sh

compose-test: dev ## Builds the images, starts them, does harm under load, and checks what is left
	@$(python) -m pytest -s tests/integration/compose

demo: dev ## A cluster on this machine, real data, a killed primary, nothing lost
	@$(python) -m lockstep.cli demo

simulate: dev ## The simulator: make simulate SEEDS=300 START=0
	@$(python) -m tests.simulation --seeds $(SEEDS) --start $(START)

simulate-hand-overs: dev ## The same with sets that are handed over
	@$(python) -m tests.simulation --hand-overs --seeds $(SEEDS) --start $(START)

simulate-coordinators: dev ## The same with coordinators and distributed transactions
	@$(python) -m tests.simulation --coordinators --seeds $(SEEDS) --start $(START)

fuzz: dev ## The hypothesis tests marked fuzz, with many more examples
	@$(python) -m pytest -m fuzz --hypothesis-profile=fuzz

bench: dev ## The workloads W1 to W6 on this machine, in less than five minutes
	@$(python) -m bench

bench-full: dev ## All of them, longer, and how it scales (W7)
	@$(python) -m bench --full

peers: dev ## Set-up only: what bench-peers measures beside Lockstep
	@scripts/setup_peers.sh

bench-peers: peers ## Lockstep and RabbitMQ, PostgreSQL, Artemis in one run; fails when a must is missed
	@$(python) -m bench.peers

bench-musts: peers ## The same with the cases that have a must alone, in about an hour
	@$(python) -m bench.peers --musts

bench-sustained: peers ## Five minutes of four of these, beside RabbitMQ, in an hour and a half
	@$(python) -m bench.peers --sustained

bench-%: dev ## Another benchmark: make bench-store runs bench/store.py
	@grep -qs '^if __name__ == "__main__":' bench/$*.py || { echo "bench-$*: bench/$*.py is not there, or is no program" >&2; exit 1; }
	@$(python) -m bench.$*

protos: dev ## Generate lockstep/wire/v1 from protos/
	$(python) scripts/generate_protos.py
