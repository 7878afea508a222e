# All commands for contributors. Each target installs what it needs. You need only python3 with venv, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RIVALS := .venv-bench
OLDEST := .venv-oldest
SERVERS := build/servers
JAVASCRIPT := tests/javascript
LOCK    = $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-annotate --custom-compile-command 'make lock'
SAY     = @printf '\n== %s\n'
# uv takes a third of pip's CPU time. It reads nothing of pip's configuration, of which this makes variables that it reads.
LIKE_PIP = set -a && UV_INDEX_STRATEGY=unsafe-best-match && eval "$$($(BIN)/python -m pip config list | sort -r | sed -nE \
  's/\\n/ /g; s/^.*\.index-url=/UV_DEFAULT_INDEX=/p; s/^.*\.extra-index-url=/UV_INDEX=/p; \
  s/^.*\.find-links=/UV_FIND_LINKS=/p; s/^.*\.constraint=/UV_CONSTRAINT=/p; s/^.*\.cert=/SSL_CERT_FILE=/p')"

# Python compiles what it imports; pip would compile all of PyTorch, which takes a minute.
QUICK = --quiet --disable-pip-version-check --no-compile

# Tests start hundreds of processes. Without bytecode each compiles what it imports: a third of a daemon's start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench gpu gpu-wheels check javascript format docs deb lock clean

help:
	@printf '%s\n' \
	  'make demo        run the daemon next to a small real training' \
	  'make test        install what the tests need, and run all checks and tests' \
	  'make soak        run the tests at full counts, with every supported Python, and with the oldest supported packages' \
	  'make bench       measure speed and memory, compared with the alternatives' \
	  'make gpu         test and measure on an NVIDIA GPU, without network, in ten minutes; REHEARSE=1 uses fakes' \
	  'make gpu-wheels  fetch what a GPU machine without network may lack, into build/gpu-wheels' \
	  'make format      format the code' \
	  'make check       check lint, types and import contracts, in seconds; make javascript checks the dashboard alone' \
	  'make lock        pin the versions and hashes of what the image, the release and CI install' \
	  'make deb         make a Debian package of the daemon with its systemd unit, in dist' \
	  'make docs        build the documentation site in build/site, and check its links'

demo: $(VENV)/.demo
	@$(BIN)/trackside demo

# Packages first; then, at a time, what uses one processor and the tests, many of which wait.
test:
	@$(MAKE) --no-print-directory -j2 system $(VENV)/.dev
	@$(MAKE) --no-print-directory -j3 check exposure suite

.PHONY: exposure oldest pythons suite
exposure:
	$(SAY) 'exposure of the systemd unit (systemd-analyze security): 2.0 of 10 at most'
	@alone=$$(mktemp -d) && cp deploy/systemd/trackside.service $$alone && \
	systemd-analyze security --offline=true --no-pager $$alone/trackside.service | tail -1; rm -r $$alone

oldest: $(VENV)/.dev $(OLDEST)/.installed
	$(SAY) 'the integrations with the oldest supported frameworks'
	@$(OLDEST)/bin/python -m pytest --quiet --processes 2 --repeat-failed tests/integrations

pythons: $(VENV)/.dev system
	$(SAY) 'all tests with each supported Python of this machine, and with the lowest versions of all packages'
	@$(BIN)/python tests/pythons.py

# A fresh clone would spend 20 seconds of CPU time on code that shows the values of failed assertions; local variables do, too.
suite: $(VENV)/.dev system
	$(SAY) 'tests, twelve files at a time, because many of them wait'
	@$(BIN)/python -m pytest --processes 12 --repeat-failed --assert=plain --showlocals -p no:benchmark

soak: $(VENV)/.soak system $(SERVERS)/.fetched oldest pythons
	$(SAY) 'tests at full counts'
	@$(BIN)/python -m pytest --soak

bench: $(VENV)/.dev $(RIVALS)/.installed
	@$(MAKE) --no-print-directory system SYSTEM='prometheus-pushgateway g++ chromium'
	$(SAY) 'benchmarks: about half an hour; use an idle machine'
	@$(BIN)/python -m pytest bench/scrape.py --benchmark-only --benchmark-disable-gc -q --no-header --benchmark-columns=median
	@PYTHONPATH=tests:. $(BIN)/python bench/footprint.py
	@PYTHONPATH=tests:. $(BIN)/python bench/history.py
	@PYTHONPATH=tests:. $(BIN)/python bench/bridges.py
	@PYTHONPATH=tests:. $(BIN)/python bench/open_history.py
	@PYTHONPATH=tests:. $(BIN)/python bench/ends.py
	@PYTHONPATH=tests:. $(BIN)/python bench/killed.py
	@PYTHONPATH=tests:. $(BIN)/python bench/push.py
	@PYTHONPATH=tests:. $(BIN)/python bench/stages.py 10 1500
	@PYTHONPATH=tests:. $(BIN)/python bench/ingest.py
	@PYTHONPATH=tests:. $(BIN)/python bench/scale.py
	@PYTHONPATH=tests:. $(BIN)/python bench/abuse.py
	@PYTHONPATH=tests:. $(BIN)/python bench/detectors.py
	@PYTHONPATH=tests:. $(BIN)/python bench/rl.py
	@PYTHONPATH=tests:. $(BIN)/python bench/notifications.py
	@PYTHONPATH=tests:. OMP_NUM_THREADS=1 $(BIN)/python bench/hangs.py
	@PYTHONPATH=tests:. $(BIN)/python bench/dashboard.py
	@PYTHONPATH=tests:. $(BIN)/python bench/zoom.py
	@PYTHONPATH=tests:. $(BIN)/python bench/gate.py
	@PYTHONPATH=tests:. $(BIN)/python bench/integrations.py
	@PYTHONPATH=tests:. $(BIN)/python bench/batches.py
	@PYTHONPATH=tests:. $(BIN)/python bench/replicas.py
	@PYTHONPATH=tests:. $(BIN)/python bench/auto.py
	@PYTHONPATH=tests:. $(BIN)/python bench/captures.py
	@PYTHONPATH=tests:. $(RIVALS)/bin/python bench/layers.py 10 20
	@PYTHONPATH=tests:. $(RIVALS)/bin/python bench/layers.py 30 8
	@PYTHONPATH=tests:. $(BIN)/python bench/checkpoints.py

# PYTHON is the one that has PyTorch. Everything is installed into a temporary directory. Without make, run the command itself.
gpu:
	@$(PYTHON) -m bench.gpu_report $(if $(REHEARSE),--rehearse) $(if $(REPORT),--output $(REPORT))

PYTHONS := 3.10 3.11 3.12 3.13
gpu-wheels: $(VENV)/.dev
	$(SAY) 'wheels for a GPU machine without network'
	@$(BIN)/python -m bench.gpu_report.wheels build/gpu-wheels $(PYTHONS)

check: $(VENV)/.dev javascript
	$(SAY) 'lint, types, import contracts'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Node comes with the packages of the tests, so that nothing needs apt, and every machine has the same one.
javascript: $(JAVASCRIPT)/node_modules/.installed
	$(SAY) 'types, lint and units of the dashboard'
	@$(BIN)/node $(JAVASCRIPT)/node_modules/typescript/bin/tsc --project $(JAVASCRIPT)
	@$(BIN)/node $(JAVASCRIPT)/node_modules/eslint/bin/eslint.js --config $(JAVASCRIPT)/eslint.config.js $(JAVASCRIPT) daemon
	@$(BIN)/node --import ./$(JAVASCRIPT)/browser.js --test --test-isolation=none --test-reporter=dot '$(JAVASCRIPT)/*.test.js'

# The lock file has no address of a registry; npm asks the one that it is configured with.
$(JAVASCRIPT)/node_modules/.installed: $(VENV)/.dev $(JAVASCRIPT)/package-lock.json
	$(SAY) 'installing what checks the dashboard (seconds)'
	@cd $(JAVASCRIPT) && PATH="$(abspath $(BIN)):$$PATH" npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

# DEB_PIP: options for pip, such as --no-index --find-links=wheels without a network.
deb: $(VENV)/.dev
	$(SAY) 'a Debian package for the Python of this system'
	@mkdir -p dist && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@PIP="$(BIN)/python -m pip" sh deploy/deb/build.sh dist/trackside-*.whl dist $(DEB_PIP)

# The pages keep their places, so that the links between them work in a clone and on the site.
PAGES := README.md CHANGELOG.md SECURITY.md LICENSE .github/CONTRIBUTING.md docs deploy examples bench/README.md grafana/dashboards tests/public
docs: $(VENV)/.docs
	$(SAY) 'the documentation, with its links checked'
	@rm -rf build/docs && mkdir -p build/docs && tar cf - --exclude=__pycache__ $(PAGES) | tar xf - -C build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --config-file docs/mkdocs.yml
	@echo 'build/site/index.html'

# Debian's Prometheus, Alertmanager, VictoriaMetrics, node_exporter, Slurm, systemd's tools, Chromium, tmux and curl,
# for the end-to-end tests, and a compiler for the fake driver (gcc alone would lack the C headers, which it only recommends). If
# the command of a package has another name, COMMAND_ names it.
.PHONY: system
SYSTEM := git prometheus prometheus-alertmanager victoria-metrics prometheus-node-exporter slurmctld slurmd chromium-headless-shell g++ systemd tmux curl
COMMAND_systemd := systemd-analyze
system:
	@missing=$$($(foreach name,$(SYSTEM),command -v $(or $(COMMAND_$(name)),$(name)) >/dev/null || echo $(name);)); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then \
	  echo "this needs $$missing; run: sudo apt-get install --no-install-recommends $$missing"; exit 2; fi; \
	printf '\n== installing %s (a minute or two)\n' "$$missing"; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -qq --no-install-recommends $$missing >/dev/null

$(VENV)/bin/python:
	$(SAY) 'making $(VENV)'
	@$(PYTHON) -m venv $(VENV)

# A new pip resolves in half of the time of the one that comes with Python 3.11; without it the old one does.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(SAY) 'installing trackside for the demo (half a minute)'
	@$(BIN)/python -m pip install $(QUICK) --upgrade pip || true
	@$(BIN)/python -m pip install $(QUICK) -e '.[demo]'
	@touch $@

# tests/constraints.txt keeps PyTorch to one version, whose CPU build suffices; an installed version stays.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml tests/constraints.txt
	$(SAY) 'installing trackside and what the tests need (a minute or two)'
	@$(BIN)/python -m pip install $(QUICK) uv && $(LIKE_PIP) && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints tests/constraints.txt -e '.[dev]' || \
	$(BIN)/python -m pip install $(QUICK) --constraint tests/constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

# Only long runs fuzz with atheris, start Ray and train with TRL, which are large.
# Prometheus and VictoriaMetrics of Debian 13, because those of Debian 12 do not accept OTLP. Elsewhere the system's are used.
$(SERVERS)/.fetched:
	@mkdir -p $(SERVERS)/lists/partial $(SERVERS)/archives/partial
	@cat /etc/apt/sources.list.d/debian.sources /dev/null 2>/dev/null | sed -n '1,/^$$/p' | \
	sed 's/^Suites: bookworm.*/Suites: trixie/' > $(SERVERS)/debian.sources
	@cd $(SERVERS) && APT="-o Dir::Etc::sourcelist=$$PWD/debian.sources -o Dir::Etc::sourceparts=- \
	-o Dir::State::lists=$$PWD/lists -o Dir::Cache::archives=$$PWD/archives" && \
	apt-get -qq $$APT update && apt-get -qq $$APT download prometheus victoria-metrics && \
	for package in *.deb; do dpkg -x $$package .; done || echo 'no newer servers: the tests of OTLP use those of the system'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(BIN)/python -m pip install $(QUICK) --constraint tests/constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.soak: $(VENV)/.dev
	@$(BIN)/python -m pip install $(QUICK) --constraint tests/constraints.txt -e '.[soak]'
	@$(BIN)/python -m pip install $(QUICK) --no-deps HolisticTraceAnalysis==0.5.0  # it lists JupyterLab, which its parser does not need
	@$(BIN)/python -m pip install $(QUICK) --no-deps torchtitan==0.3.0 spmd-types==0.2.3 torch-checkpointing==0.1.1  # it lists an older huggingface-hub
	@touch $@

# The oldest frameworks precede the packages of the tests; site.addsitedir also finds trackside, which is an editable install.
# They are installed while the others are, which pip must not see half installed: tests.pth comes last.
$(OLDEST)/.installed: $(VENV)/bin/python tests/oldest.txt
	$(SAY) 'installing the oldest frameworks'
	@$(PYTHON) -m venv --without-pip $(OLDEST)
	@$(BIN)/python -m pip --python $(OLDEST)/bin/python install $(QUICK) --no-deps --requirement tests/oldest.txt
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(echo $(OLDEST)/lib/python3*/site-packages)/tests.pth"
	@touch $@

# The alternatives that benchmarks compare with a push; PyTorch and numpy come from the environment of the tests.
$(RIVALS)/.installed: $(VENV)/.dev pyproject.toml
	$(SAY) 'installing the alternatives for the benchmarks (a minute or two)'
	@$(PYTHON) -m venv $(RIVALS)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(echo $(RIVALS)/lib/python3*/site-packages)/tests.pth"
	@$(RIVALS)/bin/python -m pip install $(QUICK) -e '.[bench]' && touch $@ || \
	  echo 'the installation failed; the tables mark what is missing'

# The image and CI install only files that have these hashes. uv also pins what other versions of Python need.
lock: $(VENV)/.dev
	$(SAY) 'pinning the versions and hashes of what the image, the release and CI install'
	@$(LOCK) pyproject.toml --extra daemon --extra passwords --extra top --universal --python-version 3.10 --output-file deploy/requirements.txt
	@printf 'build\nhatchling>=1.24\n' | \
	  $(LOCK) - --universal --python-version 3.10 --output-file deploy/build-requirements.txt
	@printf 'cyclonedx-bom\n' | \
	  $(LOCK) - --universal --python-version 3.10 --output-file .github/sbom-requirements.txt
	@$(LOCK) pyproject.toml --extra dev --constraint tests/constraints.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --output-file tests/requirements.txt

clean:
	rm -rf $(VENV) $(RIVALS) $(OLDEST) $(JAVASCRIPT)/node_modules dist build .mypy_cache .ruff_cache .pytest_cache .benchmarks
