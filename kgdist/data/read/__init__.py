"""One reader for each format of files.

arrays.py      plain numbers: csv, .npy, Parquet
columns.py     what all readers hand on
dictionary.py  entities.dict and its kin
formats.py     names of formats, and which files they take
header.py      whether a first line names columns
lines.py       compression, byte-order marks, bytes that no line may hold
ntriples.py    N-Triples
parquet.py     Parquet
rdf.py         Turtle and RDF/XML
text.py        delimited text, and what is wrong with a row of it
"""
