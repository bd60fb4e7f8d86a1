PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# what `make demo` deploys: config, checkpoint, images
DETECTOR := demo/configs/rtmdet_demo.py demo/rtmdet_demo.pth
DETECTOR_IMAGES := $(wildcard demo/images/det_*)
SEGMENTOR := demo/configs/segformer_demo.py demo/segformer_demo.pth
SEGMENTOR_IMAGES := $(wildcard demo/images/seg_*)

.PHONY: demo test check zoo bench clean

demo: $(STAMP)
	$(BIN)/python tools/deploy.py $(DETECTOR) $(DETECTOR_IMAGES)
	$(BIN)/python tools/deploy.py $(SEGMENTOR) $(SEGMENTOR_IMAGES)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

zoo: $(STAMP)
	$(BIN)/python tools/zoo.py

bench: $(STAMP)
	$(BIN)/python tools/benchmark.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# dev.txt brings the setuptools that installs the package itself, so that needs no build environment of its own
$(STAMP): setup.py pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements/dev.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	touch $@
