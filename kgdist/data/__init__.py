"""Triples and names: read, numbered, cached, dealt into batches.

batches.py     the positives of each step
build.py       files to arrays, in one pass; names to ids
cache.py       where the arrays lie, and whether they are current
dataset.py     a data set: int32 triples, memory-mapped, and vocabularies
domains.py     the entities that relations have at each end
entity_types.py  the types of entities, from a file
growing.py     triples of new entities, whose ids follow those that are known
held_out.py    valid and test taken from train
known.py       the filter: all known answers of a query
labels.py      what people call entities and relations, beside their names
leaks.py       relations that repeat or invert others, and the test triples that they answer
memory.py      triples in memory, to files that are read as any others
names.py       many strings and the way back, in arrays; names numbered as they come
queries.py     the queries of each step, where every entity is a candidate
split.py       one file divided into train, valid and test
statistics.py  what a graph is like, counted from its triples
subgraph.py    the part that some entities span
suspects.py    what was probably not meant: a header as a triple, quoted names, repeats
vectors.py     vectors of entities that other tools have made
vocabulary.py  names <-> ids
weighing.py    what triples weigh by how often their parts occur
"""
