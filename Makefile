# Two commands matter: `make demo` shows the main job, `make test` runs everything.
# Both make .venv on first use and need python3.11 or newer (with venv) and make; Java comes with
# the installation where the machine has none.

PYTHON ?=
export PYTHON
SHELL := /bin/bash
BIN := .venv/bin
SEEDS ?= 1..200
EXAMPLES ?= 1000
MINUTES ?= 10
MACHINE_FAULTS := kill-leader,kill-follower,kill-quorum,kill-all,pause-leader,pause-all,isolate-leader,partition-halves,clients-cut,slow-link,loss,clock-forward,clock-back,sync-error,disk-full,disk-hang,slow-disk,flip-table,truncate-log,rolling-restart,crash-at-failpoint,kill-client,publish-to-one,publish-again
PYSPARK ?= 4.1.4

.DEFAULT_GOAL := help
.PHONY: help demo test check quick slow cluster spark spark-chaos spark-old simulate machine-worlds machine-chaos mutations ablations mutants proof campaign bench \
	coverage fuzz fuzz-wire upgrades upgrades-wheel slow-replica members-chaos long-life docs clean \
	venv venv-dev

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: venv ## the main job: Spark into a replicated store, queried through a kill -9 (ARGS="--input FILE")
	@$(BIN)/raftstore demo $(ARGS)

test: venv-dev ## everything that .ci/run must pass, with a summary at the end
	@.ci/test

check: venv-dev ## format, lint, types and import rules; changes nothing
	@.ci/test check

quick: venv-dev ## the tests that take milliseconds each
	@.ci/test quick

slow: venv-dev ## the tests that take longer, without real processes
	@.ci/test slow

cluster: venv-dev ## the tests with real node processes
	@.ci/test cluster

spark: venv-dev ## the tests with a real Spark
	@.ci/test spark

spark-old: ## the same on the oldest pyspark that is supported, and over Spark Connect (PYSPARK=4.1.4)
	@.ci/spark-old $(PYSPARK)

simulate: venv-dev ## deterministic simulation (SEEDS=1..200, ARGS="--only member_changes")
	@$(BIN)/raftstore simulate --seeds $(SEEDS) $(ARGS)

machine-worlds: venv-dev ## simulate the shipped state machines and the test machines (SEEDS=1..200 ARGS=--members)
	@$(BIN)/python -m tests.machines --seeds $(SEEDS) $(ARGS)

machine-chaos: venv-dev ## the shipped state machines on one real cluster under load and faults (MINUTES=10)
	@$(BIN)/raftstore chaos run --machine recipes --time-limit $$(( $(MINUTES) * 60 )) \
		--nemesis $(MACHINE_FAULTS) $(ARGS)

mutations: venv-dev ## break each rule on purpose: its guards must notice (ARGS="--rule S3.1")
	@$(BIN)/python -m tests.mutations $(ARGS)

ablations: venv-dev ## only those mutations that directed tests notice
	@.ci/test mutations

mutants: venv-dev ## change the code at random: the tests must notice (ARGS="--count 300 --rooms core")
	@nice $(BIN)/python -m tests.mutants $(ARGS)

proof: venv-dev ## a slice of the campaign: worlds, real processes under faults, mutations
	@.ci/test proof

spark-chaos: venv-dev ## micro-batches of a real Spark under kills (ARGS="--batches 2000")
	@$(BIN)/python -m tests.spark.chaos $(ARGS)

campaign: venv-dev ## hours of it; stop and start again as you like (ARGS="--hours 2")
	@$(BIN)/raftstore chaos campaign --carried docs/campaign.jsonl $(ARGS)

bench: venv-dev ## measure on this machine (ARGS="--only failover")
	@$(BIN)/python -m benchmarks $(ARGS)

coverage: venv-dev ## which lines the tests without Spark reach, node processes included
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -m "not spark"
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

fuzz: venv-dev ## many more requests to the HTTP interface than the tests send (EXAMPLES=1000)
	@RAFTSTORE_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q tests/integration/http/test_openapi.py

fuzz-wire: venv-dev ## hostile messages to real nodes, none may end one (ARGS="--messages 30000 --from peers")
	@$(BIN)/python -m jepsen_like.hostile $(ARGS)

upgrades: venv-dev ## roll real nodes up and down between levels under load (ARGS="--rounds 50")
	@$(BIN)/python -m jepsen_like.upgrades $(ARGS)

upgrades-wheel: venv-dev ## exchange real nodes of the version before this one, and back (ARGS="--rounds 4")
	@$(BIN)/python -m jepsen_like.older_wheel $(ARGS)

trimming-kills: venv-dev ## kill real nodes where they trim, merge and copy (ARGS="--kills 50")
	@$(BIN)/python -m jepsen_like.trimming_kills $(ARGS)

slow-replica: venv-dev ## a replica of real nodes that falls further and further behind: retire, then exit
	@$(BIN)/python -m jepsen_like.slow_replica $(ARGS)

flips: venv-dev ## flip bits in files of real nodes, which have to heal (ARGS="--count 200")
	@$(BIN)/python -m jepsen_like.flips $(ARGS)

members-chaos: venv-dev ## change nodes and replicas under load, kills and a Spark stream (ARGS="--minutes 30")
	@$(BIN)/python -m tests.spark.members_chaos $(ARGS)

long-life: venv-dev ## many compressed days of one simulated table, equal and bounded (ARGS="--days 24")
	@$(BIN)/python -m jepsen_like.long_life $(ARGS)

docs: venv-dev ## write the reference pages of docs/ again
	@$(BIN)/python -m tests.reference

clean: ## remove what was built and cached, not the environment
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

venv:
	@.ci/venv spark

venv-dev:
	@.ci/venv spark,chaos,dev
