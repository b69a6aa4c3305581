# Everything runs in a local environment that is made on the first call: `make demo`, `make test`.
# `make PYTHON=python3.12 test` picks another Python, `make VENV=/elsewhere test` another place.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto

BIN := $(VENV)/bin
# One stamp for each Python, so that asking for another one makes the environment anew.
STAMP := $(VENV)/.installed-$(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
# Many small processes: each gets one thread, or they would fight for the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
# The tests start hundreds of processes: what the first has compiled the others read, also where the environment forbids to write it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal -rs --durations 10 --durations-min 2

.PHONY: help install demo test test-all lint types unit slow docs bench-accuracy bench-dist-accuracy bench-train bench-eval bench-predict bench-relations bench-kernels bench-load bench-kvstore bench-messages bench-scaling scaling bench-attacks bench-partition bench-edges bench-nodes bench-sampling bench-dist-sampling bench-ray bench-encoders bench-encoder-accuracy bench-inductive bench-full bench-race bench-best bench-workers bench-emb-sim bench-beside bench-tune bench-recipes bench-gpu faults soak soak-script test-slow-machine test-long bench-preprocess bench-serve clean
.DELETE_ON_ERROR:

help:
	@echo "make demo            train and evaluate a real graph (a few minutes)"
	@echo "make test            linters, types and tests, some ten minutes on two cores"
	@echo "make test-all        the same, and the tests that take longer"
	@echo "make test-long       what takes longest: more clusters, machines, networks and victims, half an hour"
	@echo "make docs            the pages of docs as a web site, in build/docs"
	@echo "make bench-accuracy  the accuracy table of the README"
	@echo "make bench-train     the speed table of the README"
	@echo "make bench-dist-accuracy  several machines against one, at equal steps"
	@echo "make bench-eval      speed and memory of ranking"
	@echo "make bench-predict   speed and memory of finding the likeliest answers"
	@echo "make bench-relations speed of finding the likeliest relations between two entities"
	@echo "make bench-kernels   every compiled loop beside plain torch and the machine's roofs"
	@echo "make bench-load      speed and memory of loading, up to 50 million triples"
	@echo "make bench-kvstore   the store's wire beside a raw socket"
	@echo "make bench-messages  what a step costs beside up to 252 servers"
	@echo "make bench-attacks   a server of the store under attack, a minute of each"
	@echo "make bench-partition partitioning beside METIS alone, 10 million triples"
	@echo "make bench-edges     vertex cuts: speed, replication, memory"
	@echo "make bench-preprocess  attributes as features, beside scikit-learn alone, and ten times as many entities"
	@echo "make bench-nodes     accuracy of graph networks on known graphs (DATA=folder that has them)"
	@echo "make bench-sampling  neighbours drawn, beside plain torch, 10 million edges"
	@echo "make bench-dist-sampling  the same on two machines with features, beside one process; rows, memory"
	@echo "make bench-ray       two machines placed by Ray, beside SSH (KGDIST_DATA=folder of archives)"
	@echo "make bench-encoders  R-GCN's layer beside PyG's, FB15k-237: time and memory"
	@echo "make bench-inductive   ranks of entities that no training has seen, FB15k-237 (KGDIST_DATA=folder of archives)"
	@echo "make bench-workers   graph encoders by 1, 2 and 4 workers, FB15k-237 (DATA=folder that has it), half an hour"
	@echo "make bench-encoder-accuracy  ranks of graph encoders, FB15k-237 (DATA=folder that has it), hours"
	@echo "make bench-full      the step against all entities beside the best product, and plain torch (KGDIST_DATA=folder of archives)"
	@echo "make bench-race      time to a rank, beside plain torch, FB15k, an hour or more (KGDIST_DATA=folder of archives)"
	@echo "make bench-best      the best ranks, row by row, hours; goes on where it was (ROWS=names, KGDIST_DATA=folder of archives)"
	@echo "make bench-emb-sim   speed and memory of the most similar of all pairs"
	@echo "make bench-beside    training, ranking, loading, two machines, beside another checkout's (AGAINST=folder)"
	@echo "make bench-tune      a search in rounds beside random search (goes on when interrupted); AGAINST=folder: beside another checkout"
	@echo "make bench-recipes   --preset beside a search, by graph and model, hours; goes on where it was (PAIRS=names, KGDIST_DATA=folder of archives)"
	@echo "make bench-serve     kgdist-serve beside its engine: requests a second, p99, memory, ten minutes of mixed requests (KGDIST_DATA=folder of archives)"
	@echo "make bench-scaling   what docs/scaling.md is computed from, and held against (some minutes)"
	@echo "make scaling         docs/scaling.md, computed from what bench-scaling measured"
	@echo "make bench-gpu       the speed table, where there is a GPU"
	@echo "make faults          every fault that a job is to survive, one after another, as a table"
	@echo "make soak            ten minutes of faults and attacks at random under a real job"
	@echo "make soak-script     five minutes of kills at random under a user's script"
	@echo "make test-slow-machine  the tests with a tenth of a core for every process (TESTS=tests/laws: some of them)"
	@echo "make clean           remove what these commands made"

install: $(STAMP)

# The stamp is written last, so an interrupted installation is done again and a finished one is not. Only a folder that is an
# environment is ever emptied.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "kgdist needs Python 3.10 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@clear=; which='import sys; print(sys.base_prefix, sys.version)'; \
		if ! $(BIN)/python -m pip --version >/dev/null 2>&1 || \
			[ "$$($(BIN)/python -c "$$which")" != "$$($(PYTHON) -c "$$which")" ]; then \
			if [ -f $(VENV)/pyvenv.cfg ]; then clear=--clear; fi; \
			echo "$(PYTHON) -m venv $$clear $(VENV)"; $(PYTHON) -m venv $$clear $(VENV); \
		fi
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements/dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(STAMP)
	$(BIN)/kgdist-train --dataset wordnet --model_name RotatE --preset --test --save_path build/demo

test: lint types unit

test-all: test slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(ONE_THREAD) $(PYTEST) -m "not slow and not long"

slow: $(STAMP)
	$(ONE_THREAD) $(PYTEST) -m "slow and not long"

# What takes half a minute, needs one more cluster, or tells again on another engine, machine or victim what a shorter test tells.
test-long: $(STAMP)
	$(ONE_THREAD) $(PYTEST) -m long

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs build/docs
	@echo "build/docs/index.html"

bench-accuracy: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py

bench-train: $(STAMP)
	$(BIN)/python benchmarks/train.py

bench-dist-accuracy: $(STAMP)
	$(BIN)/python benchmarks/dist_accuracy.py

bench-eval: $(STAMP)
	$(BIN)/python benchmarks/evaluate.py

bench-predict: $(STAMP)
	$(BIN)/python benchmarks/predict.py

bench-relations: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/relations.py

bench-kernels: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/kernels.py

bench-load: $(STAMP)
	$(BIN)/python benchmarks/load.py

bench-kvstore: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/kvstore.py
	$(ONE_THREAD) $(BIN)/python benchmarks/store_train.py

bench-messages: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/messages.py

bench-serve: $(STAMP)
	$(BIN)/python benchmarks/serve.py

bench-scaling: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/scaling_measure.py

bench-attacks: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/attacks.py

bench-partition: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/partition.py

bench-preprocess: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/preprocess.py

bench-edges: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/edges.py

bench-nodes: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/accuracy_nodes.py --data $(DATA)

bench-dist-sampling: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/dist_sampling.py

bench-ray: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/on_ray.py

bench-sampling: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/sampling.py

bench-encoders: $(STAMP)
	$(BIN)/python benchmarks/encoders.py

bench-encoder-accuracy: $(STAMP)
	$(BIN)/python benchmarks/encoder_accuracy.py --data $(DATA)

bench-inductive: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/inductive.py $(if $(DATA),--data $(DATA)) $(MORE)
bench-workers: $(STAMP)
	$(BIN)/python benchmarks/workers.py --data $(DATA)

bench-full: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/full.py

bench-race: $(STAMP)
	$(BIN)/python benchmarks/race.py

bench-best: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/best.py $(ROWS)

bench-emb-sim: $(STAMP)
	$(BIN)/python benchmarks/similar.py

bench-beside: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/beside.py --against $(AGAINST)

bench-tune: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/$(if $(AGAINST),tune.py --against $(AGAINST),rounds.py)

bench-recipes: $(STAMP)
	$(ONE_THREAD) $(BIN)/python benchmarks/recipes.py $(PAIRS)

scaling: $(STAMP)
	$(BIN)/python benchmarks/scaling.py

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py

faults: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m tests.faults.matrix

soak: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m tests.soak

soak-script: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m tests.soak.script

test-slow-machine: $(STAMP)
	$(ONE_THREAD) $(BIN)/python scripts/slow_machine.py $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal -rs $(TESTS)

clean:
	if [ -f $(VENV)/pyvenv.cfg ]; then rm -rf $(VENV); fi
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find kgdist tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
