"""One reader for each format of files.

dictionary.py  entities.dict and its kin
explain.py     finds and words what is wrong with a line
formats.py     names of formats, and which files they take
lines.py       compression, byte-order marks, over-long lines
ntriples.py    N-Triples
parquet.py     Parquet
rows.py        what all readers hand on
text.py        delimited text
"""
