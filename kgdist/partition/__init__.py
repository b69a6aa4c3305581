"""Which machine owns which entities, and the folders that say so.

assign.py      which partition owns each entity, and a repair of what is not even
book.py        which partition owns which ids; new ids
dglke_text.py  the text partitions of DGL-KE
folder.py      a partition folder: partition.json, and all of it opened
graph.py       the graph: rows of neighbours; sizes, cut and halo of its parts
metis.py       by METIS
streaming.py   by several passes over the triples on disk
verify.py      every triple in exactly one partition
write.py       the folders, all or none
"""
