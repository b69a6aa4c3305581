"""The hot loops, compiled for CPUs, with a twin in plain torch of what GPUs do as well.

adjacency.py    triples to neighbours, counts, repairs, streaming
arrange.py      edges by destination under new ids
comparators.py  the four comparators, and how far rounding can go
cores.py        entities of few triples taken away
dropout.py      rows without some of their numbers
euclid.py       L2 as a matrix product
full.py         queries against every entity
gemm.py         the fastest matrix product that is sure to keep float32's bits, or one of bfloat16
gradients.py    gradients by use gathered by row, with the regularisation
hashing.py      hash tables: the different ids of a step; names numbered
jit.py          how loops are compiled, and whether
l1.py           L1: loops, and the same in torch
loss.py         losses and their gradients in one pass
matrices.py     rows times the matrix of their relation: RESCAL, TransR
modulus.py      the complex modulus: loops, and the same in torch
neighbours.py   neighbours drawn from in-edges
pairs.py        the comparators row by row: positives, and float64 keys for near ties
query.py        the queries of vector relations
random.py       random numbers without state, shuffling without memory
rank.py         who is surely above, who is too close to call
route.py        ids to the servers that own their rows, and rows back
rows.py         rows by id: gather and update
scaled.py       L1 to candidates that a relation scales: PairRE
shares.py       work that threads share out
top.py          the K best of each row, block by block
vertex_cuts.py  triples to parts, and what parts need of others
"""
