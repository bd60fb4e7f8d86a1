PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# what `make demo` deploys: config, checkpoint, images
DETECTOR := demo/configs/detector.py demo/detector.pth
DEMO_IMAGES := $(addprefix demo/images/,landscape.jpg portrait.jpg square.jpg narrow.jpg empty.jpg)
SEGMENTOR := demo/configs/segmentor.py demo/segmentor.pth

.PHONY: demo test check zoo bench trust clean

demo: $(STAMP)
	$(BIN)/python tools/deploy.py $(DETECTOR) $(DEMO_IMAGES)
	$(BIN)/python tools/deploy.py $(SEGMENTOR) $(DEMO_IMAGES)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

zoo: $(STAMP)
	$(BIN)/python tools/zoo.py

trust: $(STAMP)
	$(BIN)/python tools/trust.py

bench: $(STAMP)
	$(BIN)/python tools/bench_set.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# dev.txt brings the setuptools that installs the package itself, so that needs no build environment of its own
$(STAMP): setup.py pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements/dev.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	touch $@
