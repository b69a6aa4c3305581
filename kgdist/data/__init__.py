"""Triples and names: read, numbered, cached, dealt into batches.

archive.py           a zip file, unpacked without trusting it
batches.py           the positives of each step
build.py             files to arrays, in one pass
builtin.py           the known sets, shipped or downloaded
cache.py             where the arrays lie, and whether they are current
dictionary.py        entities.dict and its kin
dictionary_lines.py  those of them that are not in order of their ids
download.py          one file over HTTP, resumed and checked
encode.py            names to ids
explain.py           finds and words what is wrong with a line
formats.py           names of formats, and which files they take
interner.py          names numbered as they come
known.py             the filter: all known answers of a query
lock.py              one builder at a time
memory.py            triples in memory, to files that the store reads
names.py             many strings and the way back, in arrays
ntriples.py          N-Triples
parquet.py           Parquet
rows.py              what all readers hand on
store.py             a data set: int32 triples, memory-mapped, and vocabularies
stream.py            compression, byte-order marks, over-long lines
text.py              delimited text
vocabulary.py        names <-> ids
"""
