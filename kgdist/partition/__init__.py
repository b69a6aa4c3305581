"""Which machine owns which entities, and the folders that say so.

assign.py      which partition owns each entity
balance.py     what is evened out, and a repair
book.py        which partition owns which ids; new ids
dglke_text.py  the text partitions of DGL-KE
folder.py      one partition, opened
graph.py       the graph as rows of neighbours
manifest.py    partition.json
metis.py       by METIS
sizes.py       sizes, cut, halo
streaming.py   by several passes over the triples on disk
verify.py      every triple in exactly one partition
writer.py      the folders, all or none
"""
