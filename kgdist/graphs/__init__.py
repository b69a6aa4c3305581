"""A graph in memory: nodes and edges of several types, with data; and the in-edges that neighbours are drawn from.

convert.py    graphs of SciPy, NetworkX and PyG as ours, and back
frames.py     data of nodes and edges: columns by name
ids.py        ids as users give them
in_memory.py  the graph, and how it is made of arrays
planted.py    a graph with planted classes, to try things on
schema.py     names of node and edge types
structure.py  in-edges of one type in compressed rows, and what is asked of them
transform.py  graphs with loops, without them, with edges both ways, of one type, of some nodes
"""
