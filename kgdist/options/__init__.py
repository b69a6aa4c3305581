"""Every option once: its name, its default, what it is refused with.

built_in.py        the names of the built-in score functions
cluster.py         the options of several machines: cutting a graph, training on the parts
commands.py        what --help says besides the options
config.py          the table of all options
configfile.py      options in files: YAML, config.json, both dialects of DGL-KE
contradictions.py  what is refused of one option because of another
interval.py        how often a checkpoint is written: steps or minutes
model_file.py      the names and files of score functions of your own
of_brought.py      the options of what a user brings beside triples
of_encoders.py     the options of graph encoders
of_entities.py     the options of attributes of entities, and of entities never seen
of_files.py        how files of triples are laid out
of_graphs.py       the options of commands that work on triples alone
of_objectives.py   the options of what a training makes small
of_other_tests.py  the options of what kgdist-eval can test besides ranks of entities
of_serving.py      the options of a run that answers over HTTP
of_tuning.py       the options of a search
option.py          what one option is
parse.py           the command line and --help, from the table
presets.py         hyper-parameters that are known to work
resolve.py         fills in what follows
shell_words.py     what only a shell would understand
tools.py           the options of the commands that come after a training
"""
