"""What other tools read and write.

adopt.py       models of other tools as runs, and reading those of DGL-KE
embeddings.py  embeddings, a function for each format
graphs.py      a graph on its way into another format, piece by piece; N-Triples
layouts.py     those formats, a function for each
libkge.py      reading checkpoints of LibKGE
pykeen.py      reading models of PyKEEN
source.py      the tables of a run and the names of their rows
"""
