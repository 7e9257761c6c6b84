# Everything a developer or a new user needs. Each target does its own set-up; a second call is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras
# Two test processes, one XLA thread each, beat one process with two.
WORKERS ?= 2

.PHONY: help demo test test-fast test-browser test-extras lint format docs bench soak wheel lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "uvax needs Python 3.11 or newer, this is %d.%d; set PYTHON=..." % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(EXTRAS): $(STAMP) requirements-extras.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-extras.lock
	@touch $@

demo: $(STAMP) ## collect size 5, train DQN, BDQNP(3) and UVU, print the table, write demo/report.html
	@$(BIN)/uvax demo --out demo --resume

test: $(STAMP) ## all tests that need no browser
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not browser" $(ARGS)

test-fast: $(STAMP) ## without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not browser and not slow" $(ARGS)

test-browser: $(STAMP) ## the report in headless Chromium; skipped with a reason where there is none
	$(BIN)/python -m pytest -m browser -rs $(ARGS) || test $$? -eq 5 # 5: all were skipped, for the reason printed

test-extras: $(EXTRAS) ## what needs Ray or TensorBoard, which it installs
	$(BIN)/python -m pytest -m extras $(ARGS)

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write the numbers of results/ into README and docs/results.md
	$(BIN)/python tools/results_in_docs.py

bench: $(STAMP) ## all benchmarks, as ratios; rows go to results/benchmarks. Run nothing else meanwhile
	$(BIN)/python benchmarks/envs.py
	$(BIN)/python benchmarks/theory.py
	$(BIN)/python benchmarks/training.py

soak: $(STAMP) ## kill a training 50 times and compare the bits
	$(BIN)/python tools/soak.py

wheel: $(STAMP) ## build the wheel and try it in an empty environment
	$(BIN)/python tools/try_wheel.py

lock: $(EXTRAS) ## write the exact versions of this environment to requirements.lock and requirements-extras.lock
	$(BIN)/python tools/lock.py

clean: ## remove the environment and caches
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
