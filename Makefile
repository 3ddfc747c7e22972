# make demo   the main job: a GRPO run on a CPU, accuracy before and after
# make test   everything that needs no GPU
# make lint   ruff and mypy
# make test-trl   the tests on older TRL releases
#
# Each sets up .venv first. PYTHON=python3.12 picks another interpreter; DEMO_ARGS goes to the recipe.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRL_VERSIONS := 1.10.0 1.13.0 1.14.2
STAMP := $(VENV)/.installed

.PHONY: demo test test-trl lint format clean

# torch first and alone: where it is there, nothing else asks the registry for its newest build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
		-m trl_grpo_plus.recipes.grpo --config arithmetic_cpu $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest tests

# Older TRL releases, each laid over the environment. The parity tests are TRL's own numbers, so they hold on each.
test-trl: $(STAMP)
	# TRL before 1.14 imports it and does not ask for it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check requests
	for version in $(TRL_VERSIONS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
			--target $(VENV)/trl-$$version trl==$$version || exit 1; \
		echo "TRL $$version"; PYTHONPATH=$(VENV)/trl-$$version $(BIN)/python -m pytest tests || exit 1; \
	done

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) outputs build dist *.egg-info
