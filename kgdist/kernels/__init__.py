"""The hot loops, compiled, each with a twin in plain torch or NumPy.

adagrad.py       rows by id: gather and update
bilinear.py      rows times the matrix of their relation
blocked.py       L1 and complex modulus in torch
choice.py        compiled or twin
compare.py       the four comparators, and how far rounding can go
euclid.py        L2 as a matrix product
euclid_loops.py  the loops of that
exact.py         float64 keys for near ties
gemm.py          the fastest matrix product that is sure to keep float32's bits
graph_loops.py   triples to neighbours, counts, repairs, the loops
grouped.py       many rows times few matrices
jit.py           how loops are compiled
l1.py            the loops of L1
loss.py          losses and their gradients in one pass
modulus.py       the loops of the complex modulus
names_loop.py    names numbered by hash, the loops
pairs.py         the comparators for a positive and its query
penalty.py       regularisation, and mean squares of gradients
prefetch.py      rows that will be needed soon
products.py      products in float32 or in bfloat16
projected.py     candidates that a relation projects first
query.py         the queries of vector relations
rank.py          who is surely above, who is too close to call
rank_loop.py     the loop of that
route.py         ids to the servers that own their rows, and rows back
route_loops.py   the loops of that
rows.py          the loops of that
sample.py        random numbers without state, shuffling without memory
sample_loops.py  the loops of that
stream_loops.py  the loop of restreaming
tiled.py         L1 and complex modulus, compiled
top.py           the K best of each row, block by block
top_loop.py      the loop of that
unique.py        the different ids of a step
uses.py          gradients by use gathered by row
"""
