# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
ALONE := $(VENV)/.alone
READY := $(VENV)/.ready

# Many tests start programs, which begin sooner where what is imported was compiled before.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-gpu test-machines campaign mutants bench docs lint-ci wheel format clean

demo: $(ALONE)
	$(BIN)/turnout run

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n 2

# The browser tests use the system's chromium (apt-get install -y chromium), driven by Playwright.
test-slow: $(READY)
	$(BIN)/pip install --quiet -e '.[browser,release]' -c constraints.txt
	$(BIN)/pytest -n 2 -m slow

# About an hour on 2 cores. Sizes: make campaign CAMPAIGN="--kills 100 --messages 100000 --stride 10"
CAMPAIGN ?= --kills 1000 --messages 1000000
campaign: $(READY)
	$(BIN)/python tests/campaign/run.py $(CAMPAIGN) --out campaign.json

# Whether the tests notice a wrong line. The first run finds which tests execute which line, which takes half an hour.
MUTANTS ?= --number 200
mutants: $(READY)
	$(BIN)/python tests/campaign/mutants.py $(MUTANTS) --out mutants-out

# The whole suite with every run on the GPU (`runtime.device` is "auto"), in the environment of $(PYTHON), whose torch
# has to know the GPU.
test-gpu:
	$(PYTHON) -c "import torch; torch.cuda.is_available() or exit('no GPU here')"
	PYTHONPATH=src:papers $(PYTHON) -m pytest -n 8 -p no:benchmark

# Other machines, simulated: docs/install.md has the table. It continues what is in machines-out; the packages are
# Debian's, and a machine whose tools are missing is left out, with the reason. Some: MACHINES='--only "one core" clang'
PACKAGES := clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user locales util-linux python3 python3-venv
test-machines: $(READY)
	-apt-get install -y --no-install-recommends $(PACKAGES)
	$(BIN)/python tests/campaign/machines.py --out machines-out $(MACHINES)

# The documentation as a site, site/index.html: readable without a network.
docs: $(READY)
	$(BIN)/pip install --quiet -e '.[docs]' -c constraints.txt
	$(BIN)/mkdocs build --quiet

# The workflow files of the public forge (.github), as the forge reads them.
lint-ci: $(READY)
	$(BIN)/pip install --quiet check-jsonschema yamllint
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/yamllint --strict -d '{extends: default, rules: {line-length: {max: 120}}}' .github

# Source distributions and wheels of turnout (with compiled kernels) and turnout-papers, in dist/.
wheel: $(ALONE)
	$(BIN)/pip install --quiet -e '.[release]' -c constraints.txt
	rm -rf dist
	TURNOUT_KERNELS=1 $(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist papers
	$(BIN)/twine check --strict dist/*

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site src/*.egg-info papers/build papers/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# turnout alone. torch first and pinned: an unpinned one may bring gigabytes of GPU libraries.
$(ALONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==$$(sed -n 's/^torch==//p' constraints.txt) -c constraints.txt
	$(BIN)/pip install --quiet -e . -c constraints.txt
	touch $@

# With everything that the tests need.
$(READY): $(ALONE) papers/pyproject.toml
	$(BIN)/pip install --quiet -e '.[dev]' -e papers -c constraints.txt
	touch $@
