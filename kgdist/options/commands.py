"""What `--help` says of each command besides its options: one sentence, examples, and the option that needs no flag."""

from __future__ import annotations

TEXTS = {
    "train": "Train the embeddings of a knowledge graph.",
    "eval": "Rank the test triples with a trained run. The run's config.json gives model and data; flags given here win.",
    "partition": "Divide a knowledge graph among machines, into parts of equal size with few triples between them.",
    "dist-train": "Train the embeddings of a partitioned knowledge graph on several machines, started over SSH.",
    "launch": "Run a script on several machines, as trainers and as servers of the graph's partitions.",
    "copy": "Send every machine its partition of a graph over SSH, and a script; what is already there is not sent again.",
    "server": "Run the servers and trainers of one machine of a job, by hand, for kgdist-dist-train --backend manual.",
    "client": "Tell a machine started by kgdist-server that it may train, and wait for the end of the job.",
    "predict": "Ask a trained run which triples are likely, for given heads, relations and tails, or for all of them.",
    "emb-sim": "Find the most similar embeddings: of the entities or relations of a run, or of any .npy file.",
    "export": "Write the embeddings of a run in a format that other tools read.",
    "import": "Make a run from a model trained by DGL-KE, PyKEEN or LibKGE, with the names of its entities.",
    "convert": "Write a knowledge graph in another format, keeping names and the order of triples.",
    "split": "Divide a file of triples into train, valid and test, so that train has every entity and relation.",
    "inspect": "Inspect a data set before training: its sizes, its relations, and problems that would distort results.",
    "compare": "Compare several runs: options, metrics and curves.",
    "preprocess": "Turn the attributes of entities (numbers, dates, categories, words, texts, vectors) into features.",
    "encode": "Embed entities that a run with an encoder has never seen, from their triples and attributes, and rank them.",
    "tune": "Search for the options with the best validation MRR, stopping unpromising trials early.",
    "serve": "Answer questions to a trained run over HTTP, in JSON.",
    "doctor": "Check that this machine has what kgdist needs, and say what to do if something is missing.",
    "completion": "Print a script with which a shell completes the commands and their options.",
}
POSITIONAL = {  # an option without its flag
    "eval": ("model_path", "RUN"),
    "launch": ("command", "COMMAND"),
    "server": ("job", "FILE"),
    "client": ("job", "FILE"),
    "predict": ("model_path", "RUN"),
    "emb-sim": ("model_path", "RUN"),
    "export": ("model_path", "RUN"),
    "import": ("model_path", "FOLDER"),
    "split": ("file", "FILE"),
    "inspect": ("data", "DATA"),
    "compare": ("runs", "RUN"),
    "encode": ("model_path", "RUN"),
    "serve": ("model_path", "RUN"),
    "completion": ("shell", "SHELL"),
}
EXAMPLES = {
    "train": """\
examples:
  kgdist-train --dataset wordnet --model_name RotatE --preset
  kgdist-train --model_name ComplEx --dataset wn18 --batch_size 1024 \\
      --neg_sample_size 1024 --hidden_dim 512 -g 200 --lr 0.1 -adv -rc 1e-5 \\
      --max_step 20000 --test
  kgdist-train --model_name DistMult --dataset mine --data_path . \\
      --format raw_udd_hrt --data_files train.tsv valid.tsv test.tsv \\
      --valid --early_stop_patience 3

A flag may be shortened while it stays unambiguous (--model for --model_name). A switch that a preset or file turned on is
turned off with --switch=false. The later of two equal flags counts; flags win over --config, and that over --preset.""",
    "eval": """\
example:
  kgdist-eval ckpts/RotatE_wordnet_0
  kgdist-eval --model_path ckpts/RotatE_wordnet_0 --rank_ties pessimistic

A flag may be shortened while it stays unambiguous. Without flags all test triples are ranked among all entities, filtered.""",
    "partition": """\
examples:
  kgdist-partition --dataset FB15k -k 4 --data_path ~/my_task
  kgdist-partition --dataset mine --format raw_udd_hrt \\
      --data_files train.tsv valid.tsv test.tsv -k 8 --method streaming
  kgdist-partition --dataset FB15k --data_path ~/my_task --verify
  kgdist-partition --dataset FB15k -k 4 --data_path ~/my_task --layout graph \\
      --features text=entity_text.npy --out ~/graph
  kgdist-partition --dataset FB15k -k 4 --data_path ~/my_task --edges --expand 2 \\
      --fanout 25 10 --out ~/self_sufficient
  kgdist-partition --metadata mag/metadata.json -k 4 --method streaming --out mag_4

The partitions are the folders partition_0, partition_1, ... in <data_path>/<dataset>. --dry_run prints sizes and cut only.""",
    "dist-train": """\
example, on the first of four machines:
  kgdist-partition --dataset FB15k -k 4 --data_path ~/my_task
  kgdist-dist-train --path ~/my_task --ip_config ~/my_task/ip_config.txt --copy \\
      --num_client_proc 16 --model_name TransE_l2 --dataset FB15k --data_path ~/my_task \\
      --hidden_dim 400 --gamma 19.9 --lr 0.25 --batch_size 1000 --neg_sample_size 200 \\
      --max_step 500 --log_interval 100 --test -adv --regularization_coef 1.00E-09 \\
      --num_thread 1

A line of ip_config.txt is `address [port [servers]]`, for example `192.168.0.11 30050 2`; # begins a comment. The model is saved
below --save_path (ckpts) in the workspace of the first machine. --dry_run prints the plan and starts nothing.""",
    "launch": """\
examples:
  kgdist-launch --workspace ~/graphsage --num_trainers 2 --num_samplers 0 \\
      --num_servers 1 --part_config 4part_data/ogbn-products.json \\
      --ip_config ~/graphsage/ip_config.txt "python3 train_dist.py --num-epochs 30"
  kgdist-launch --backend local --ip_config ip_config.txt --num_trainers 2 \\
      --dry_run "python3 train.py"

Every trainer is a process of that command, with RANK, WORLD_SIZE, MASTER_ADDR and the like in its environment, so that
torch.distributed.init_process_group("gloo") needs no arguments. A server runs the same command up to
kgdist.distributed.initialize(), serves there, and never returns. Servers are started when the first trainer calls it; a script
that never does is run by the trainers alone. Their output appears here, with machine and rank. When one fails, all are ended.""",
    "copy": """\
examples:
  kgdist-copy --path ~/my_task --ip_config ~/my_task/ip_config.txt --dataset FB15k \\
      --data_path ~/my_task
  kgdist-copy --workspace ~/graphsage --ip_config ~/graphsage/ip_config.txt \\
      --rel_data_path 4part_data --part_config 4part_data/ogbn-products.json \\
      --script_folder code""",
    "server": """\
example, on the machine of the second line of ip_config.txt:
  kgdist-server kgdist_job.json --machine 1""",
    "client": """\
example, on the machine of the second line of ip_config.txt:
  kgdist-client kgdist_job.json --machine 1""",
    "predict": """\
examples:
  kgdist-predict ckpts/RotatE_wordnet_0 --head dog.n.01 --relation hypernym \\
      --exclude_known
  kgdist-predict --model_path ckpts/RotatE_wordnet_0 --format 'h_r_*' \\
      --data_files heads.txt relations.txt --exec_mode batch_head

Lists are read as names if the run knows names, otherwise as ids. Several heads, relations and tails are combined.""",
    "emb-sim": """\
examples:
  kgdist-emb-sim ckpts/RotatE_wordnet_0 --left dog.n.01
  kgdist-emb-sim ckpts/RotatE_wordnet_0 --format '*' --sim_func l1 --topK 100 \\
      --output alike.tsv
  kgdist-emb-sim --emb_file wn18_TransE_l2_entity.npy --format 'l_*' \\
      --data_files left.txt --exec_mode batch_left

Higher scores are more similar; l2 and l1 are distances with a minus sign. If one side is *, an embedding is not compared with
itself; if both are, every pair counts once.""",
    "export": """\
examples:
  kgdist-export ckpts/RotatE_wordnet_0 --to word2vec
  kgdist-export ckpts/RotatE_wordnet_0 --to parquet --tables entity --out vectors""",
    "import": """\
examples:
  kgdist-import dglke_ckpts/TransE_l2_FB15k_0 --data_path ~/data
  kgdist-import dglke_ckpts/ComplEx_mine_0 --entity_mfile entities.tsv \\
      --rel_mfile relations.tsv
  kgdist-import my_pykeen_model --dataset mine --data_path mine --format raw_udd_hrt \\
      --data_files train.txt valid.txt test.txt
  kgdist-import kge/local/experiments/my_model --data_path kge/data/fb15k-237

PyKEEN saves its models as pickles, which run code when they are read, so no command here reads one. First run
`python examples/from_pykeen/arrays.py FOLDER` where PyKEEN is installed: it writes the arrays that this command reads.
Checkpoints of LibKGE are pickles, too, but of plain data: they are read without running any code, or refused.""",
    "convert": """\
examples:
  kgdist-convert --data_path mine --data_files train.tsv valid.tsv test.tsv --to libkge \\
      --out mine_libkge
  kgdist-convert --data_path mine --data_files graph.nt.gz --base http://example.org/ \\
      --to udd_hrt --out mine_ids
  kgdist-convert --input_format built_in --dataset wordnet --to ntriples \\
      --base http://example.org/ --out wordnet_nt""",
    "split": """\
examples:
  kgdist-split graph.tsv --out mine
  kgdist-split graph.csv.gz --delimiter , --header --ratio .9 .05 .05 --no_leaks \\
      --out mine
  kgdist-train --dataset mine --data_path . --model_name ComplEx --preset --test""",
    "inspect": """\
examples:
  kgdist-inspect mine
  kgdist-inspect mine/train.tsv mine/valid.tsv mine/test.tsv --report mine.html
  kgdist-inspect wordnet --json""",
    "compare": """\
examples:
  kgdist-compare ckpts/*
  kgdist-compare ckpts/RotatE_wordnet_0 ckpts/ComplEx_wordnet_0 --output compared.html""",
    "preprocess": """\
examples:
  kgdist-preprocess --entities people.tsv --draft_schema --schema people.yaml
  kgdist-preprocess --entities people.tsv --schema people.yaml --out attributes
  kgdist-preprocess --entities people.tsv --schema people.yaml --dataset FB15k \\
      --data_path ~/data --executor process

A schema says which column has the names of the entities, and what the others are:
  key: entity
  node_type: person
  attributes:
    population: {kind: numeric, bins: 20, strategy: quantile}
    birth_date: {kind: date}
    country: {kind: categorical}
    types: {kind: multi, separator: "|", min_count: 5}
    description: {kind: text, encoder: hashed, dim: 64}
    image: {kind: vector, file: images.npy}""",
    "encode": """\
examples:
  kgdist-encode ckpts/DistMult_wordnet_0 --triples new.tsv --out grown
  kgdist-encode ckpts/DistMult_wordnet_0 --triples new.tsv --entities new_attributes.tsv \\
      --test held_out.tsv
  kgdist-predict grown --head unicorn.n.01 --relation hypernym

The run must have been trained with --encoder. The new run has the known entities, then the new ones; every command reads it.""",
    "tune": """\
examples:
  kgdist-tune --dataset wordnet --model_name ComplEx --trials 30
  kgdist-tune --dataset wordnet --model_name RotatE --preset --trials 50 \\
      --search search.yaml --out tune_rotate
  kgdist-tune --dataset FB15k-237 --model_name ComplEx --max_step 10000 --trials 64 \\
      --rounds 3 --out tune_rounds
  kgdist-train --config tune/best.yaml --test

Besides its own options it takes those of kgdist-train, which apply to every trial. --search FILE lists the options to search,
one per line; no others are searched:
  lr: [0.01, 0.3, log]            # between two numbers, evenly on a logarithmic scale
  gamma: [2, 20]                  # between two numbers
  hidden_dim: {choices: [100, 200]}
Without that file the model's usual options are searched, except those that you give. The same --out continues a search.

With --rounds 3, 64 trials cost about three trainings: all of them start on a small core of the graph, the best 8 continue on a
larger one for more epochs, and the best of these on the whole graph.
The first trial has the options of the preset, if there is one; in
rounds it is trained on the whole graph, too, for one training more, so
no search ends below it.""",
    "serve": """\
examples:
  kgdist-serve ckpts/RotatE_wordnet_0
  kgdist-serve ckpts/RotatE_wordnet_0 --port 9000 --max_k 100
  kgdist-serve ckpts/RotatE_wordnet_0 --host 0.0.0.0 --token_file token.txt
  curl '127.0.0.1:8080/predict?head=dog.n.01&relation=hypernym&k=3'
  curl 127.0.0.1:8080/predict \\
      -d '{"k": 3, "questions": [{"head": "dog.n.01", "relation": "hypernym"}]}'

/openapi.json describes what can be asked. It speaks HTTP: over a network that others share, put a proxy with TLS in front.
SIGTERM and Ctrl-C end it once it has answered the requests it has received.""",
    "doctor": """\
examples:
  kgdist doctor
  kgdist doctor --ip_config ip_config.txt --json""",
    "completion": """\
examples:
  eval "$(kgdist completion bash)"     in ~/.bashrc
  eval "$(kgdist completion zsh)"      in ~/.zshrc, after compinit
  kgdist completion fish | source      in ~/.config/fish/config.fish""",
}
SHORT = {  # the options that -h shows, with the first examples; --help shows all
    "train": "dataset data_path format data_files model_name preset hidden_dim lr max_epoch valid test gpu",
    "eval": "model_path data_path rank_ties eval_percent no_eval_filter neg_sample_size_eval num_proc gpu report json",
    "dist-train": "path ip_config dataset model_name preset hidden_dim lr max_step num_client_proc copy test dry_run",
    "partition": "dataset format data_files data_path num_parts method layout edges out dry_run verify",
    "predict": "model_path head relation tail topK exclude_known explain output json format",
    "emb-sim": "model_path kind left right sim_func topK emb_file output json format",
    "tune": "dataset format data_files model_name preset trials jobs search rounds out max_step",
    "launch": "command path ip_config part_config num_trainers num_samplers num_servers backend dry_run",
}
SYNONYMS = {  # what other tools call our options
    "epochs": "max_epoch",
    "num_epochs": "max_epoch",
    "steps": "max_step",
    "learning_rate": "lr",
    "dim": "hidden_dim",
    "embedding_dim": "hidden_dim",
    "emb_size": "hidden_dim",
    "batch": "batch_size",
    "bs": "batch_size",
    "negs": "neg_sample_size",
    "negatives": "neg_sample_size",
    "num_negs": "neg_sample_size",
    "margin_gamma": "gamma",
    "loss": "loss_genre",
    "patience": "early_stop_patience",
    "workers": "num_proc",
    "num_workers": "num_proc",
    "threads": "num_thread",
    "device": "gpu",
    "cuda": "gpu",
    "data": "dataset",
    "train": "data_files",
    "weight_decay": "regularization_coef",
    "l2": "regularization_coef",
    "inverse": "reciprocal",
    "output": "save_path",
    "save_dir": "save_path",
    "run": "model_path",
    "checkpoint": "model_path",
    "top_k": "topK",
    "k": "topK",
    "source": "head",
    "target": "tail",
    "parts": "num_parts",
    "num_partitions": "num_parts",
    "hosts": "ip_config",
    "n_trials": "trials",
}
OF_UMBRELLA = ("doctor", "completion")  # commands of `kgdist` that have no name of their own


def called(command: str) -> str:
    """How a user calls a command: `kgdist-train`, but `kgdist doctor`."""
    return f"kgdist {command}" if command in OF_UMBRELLA else f"kgdist-{command}"
