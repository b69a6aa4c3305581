"""Score functions, one small file each.

base.py      what a model is: a query rule times a comparator
complex.py   a relation is a diagonal matrix of complex numbers
distmult.py  a relation is a diagonal matrix
pairre.py    two vectors for each relation, one for heads, one for tails
recipes.py   options for a graph that nobody has tuned for, by model and sizes
registry.py  the models by name
rescal.py    a matrix for each relation
rotate.py    a rotation for each relation
simple.py    two vectors for each entity, one as head, one as tail
transe.py    translation: head + relation near tail
transr.py    the same after a projection by the relation

Their names stand in options/built_in.py, which --help can read without torch.
"""
