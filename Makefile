# The two commands are `make all` and `make test`; everything they need they set up themselves.
# `make help` lists the rest.

PYTHON ?= python3
RESULTS ?= results
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# Why a job runs is asked with `snakemake -n`; here it would be hundreds of file names a job.
SNAKEMAKE := $(BIN)/snakemake --quiet reason --cores 1
# BLAS and Python's output behave the same in every command below.
export PYTHONUNBUFFERED := 1
export PYTHONPATH := $(CURDIR)/workflow/scripts

.DEFAULT_GOAL := help
.PHONY: help all smoke proof aa verify pack test test-slurm test-docker soak lint bench pin lock clean clean-docker

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

all: $(READY) ## Run everything at the default scale (about half an hour): results/report.html
	$(SNAKEMAKE) all
	@echo "The report: results/report.html"

smoke: $(READY) ## Run everything at a small scale (about 10 minutes): smoke/results/report.html
	$(SNAKEMAKE) all --configfile config/smoke.yaml --directory smoke
	@echo "The report: smoke/results/report.html"

proof: $(READY) ## Run the AOF crash proof alone (about 8 minutes; as root with power cuts)
	$(SNAKEMAKE) results/proofs/aof.json
	@echo "The record: results/proofs/aof.json"

aa: $(READY) ## Run one image against itself and count false verdicts (about 5 minutes): aa/results/tables/aa.csv
	$(SNAKEMAKE) results/tables/aa.csv --configfile config/aa.yaml --directory aa
	@echo "The verdicts: aa/results/tables/aa.csv"

verify: $(READY) ## Say whether every result is as it was (RESULTS=smoke/results for the smoke run)
	$(BIN)/python -m refill.evidence verify $(RESULTS)/manifest.json

pack: $(READY) ## Write one archive of the results that verifies elsewhere
	$(BIN)/python -m refill.evidence pack $(RESULTS)/manifest.json

test: $(READY) ## Run the tests
	$(BIN)/pytest

test-slurm: $(READY) ## Set up a Slurm on this machine (root, packages slurm-wlm and munge), test, end it
	$(BIN)/pytest -m slurm tests/slurm

test-docker: $(READY) ## Test containers, on the Docker daemon that is there or (as root) one of docker.io
	$(BIN)/pytest -m docker tests/docker

soak: $(READY) ## Run the long tests too (minutes)
	$(BIN)/pytest -m soak

lint: $(READY) ## Check form and types, and that all lists of pins agree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy workflow/scripts
	for main in images/*/__main__.py; do (cd $$(dirname $$main) && $(CURDIR)/$(BIN)/mypy \
	  --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache .) || exit 1; done
	$(BIN)/python workflow/scripts/check_environment.py

bench: $(READY) ## Measure this project's own speed and memory: results/bench.json
	$(BIN)/python -m refill.bench --output results/bench.json

pin: $(READY) ## Pin the images' sources as they are now in config/images.yaml
	$(BIN)/python -m refill.images pin

lock: $(READY) ## Make requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header -o requirements.lock

clean: ## Remove the environment (results stay)
	rm -rf $(VENV)

clean-docker: $(READY) ## Remove the containers, networks and volumes that killed runs left (images stay)
	$(BIN)/python -m refill.runtimes.clean

# The stamp is a copy of the lock that the environment was made from. An environment that is there is
# changed in place and only when the lock says something else, as a measurement may be running in it;
# one that does not start is made anew.
$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is older or missing." \
	         "Say which one to use: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "$(PYTHON) cannot make a virtual environment;" \
	         "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@cmp -s requirements.lock $(READY) || \
	  { echo "Installing the packages of requirements.lock into $(VENV): about a minute ..."; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements.lock; }
	@cp requirements.lock $(READY)
