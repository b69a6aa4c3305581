"""What other tools read and write.

dglke.py           names and files as DGL-KE saves them
folder.py          folders that are whole or absent
foreign.py         models of other tools as runs
from_dglke.py      models of DGL-KE
from_pykeen.py     models of PyKEEN
graph.py           a graph on its way into another format
graph_libkge.py    folders of LibKGE
graph_ntriples.py  N-Triples
graph_parquet.py   Parquet
graph_text.py      delimited text
layouts.py         those formats by name
lines.py           rows of numbers as text
npy.py             rows as they lie in the run
parquet.py         a row for each entity
projector.py       text for the TensorBoard projector
safetensors.py     tables by name for other libraries
source.py          the tables of a run and the names of their rows
targets.py         the formats of embeddings by name, whole or not at all
word2vec.py        text as word2vec writes it
"""
