.PHONY: help install demo test test-quick test-triton-26 test-models test-clients test-faults test-browser test-image check docs bench clean

help:
	@echo "make demo     start a real Triton and the service in front of it, to ask and to try in a browser (ARGS=--task=...)"
	@echo "make test     run the tests                      (more: scripts/test -k name)"
	@echo "make test-quick  those that need neither Triton nor processes, in some four minutes"
	@echo "make test-triton-26  those against Triton once more, with a front that answers as Triton 26.x does"
	@echo "make test-models  what needs torch: the goldens are current, exported models answer as the originals do"
	@echo "make test-clients  clients that others wrote (tritonclient, KServe's SDK, openai, ...), generated and damaged requests"
	@echo "make test-faults  Triton killed, hung, restarted, its model failing, ...: under load, with every answer checked"
	@echo "make test-browser  the playground in Chromium, in front of a real Triton"
	@echo "make test-image  the environment of the container image made twice, and compared byte by byte"
	@echo "make check    style, types, generated code"
	@echo "make docs     the site of the documentation, in build/site  (at 127.0.0.1:8000 while you write: scripts/docs serve)"
	@echo "make bench    compare the speed with Triton alone and with others  (quickly: ARGS=--quick; goals: ARGS=--goals)"
	@echo "              (streams of generated tokens: .venv/bin/python -m benchmarks.generation; more in benchmarks/README.md)"
	@echo "make install  the environments that these need   (they do it themselves)"
	@echo "make clean    remove what these have made"

install:
	@scripts/install

# ARGS: more flags, e.g. make demo ARGS="--predictor_protocol=grpc-v2 --once"
demo:
	@exec scripts/demo $(ARGS)

test: install
	@scripts/test $(ARGS)

test-quick: install
	@scripts/test --quick $(ARGS)

test-triton-26: install
	@scripts/test tests/integration --triton=26 $(ARGS)

test-models:
	@scripts/test_models $(ARGS)

test-clients:
	@scripts/test_clients $(ARGS)

test-faults:
	@scripts/test_faults $(ARGS)

test-browser:
	@scripts/test_browser $(ARGS)

test-image: install
	@scripts/test_image $(ARGS)

check: install
	@scripts/check

docs:
	@scripts/docs

bench:
	@scripts/bench $(ARGS)

clean:
	for folder in .venv .venv-*; do if [ -f $$folder/install.log ]; then rm -rf $$folder; fi; done
	rm -rf build dist
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
