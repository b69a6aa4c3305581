"""Which machine owns which entities, and the folders that say so.

assign.py           which partition owns each entity, and a repair of what is not even
balance.py          what is evened out, in one load or several
book.py             which partition owns which ids; new ids
chunked.py          graphs in DGL's chunked format
dglke_text.py       the text partitions of DGL-KE
edges.py            which part each triple goes to, entities being replicated
edges_folder.py     the self-sufficient partition, opened
edges_verify.py     such partitions read again
edges_write.py      their folders, all or none
expansion.py        what a partition needs of others, hop by hop
folder.py           the partition of triples, opened
graph.py            the graph: rows of neighbours; sizes, cut and halo of its parts
manifest.py         partition.json, of whatever kind
metis.py            by METIS
partition_graph.py  a graph of one type or several divided, and what was written opened by name
streaming.py        by several passes over the triples on disk
typed_book.py       which partition owns which ids, of nodes and edges of several types
typed_folder.py     the partition of a graph of several types, opened
typed_graph.py      such a graph, as it is read to be divided
typed_sizes.py      sizes, cut and halos, counted from what was written
typed_verify.py     what was written read again
typed_write.py      the folders of such a graph
verify.py           every triple in exactly one partition
write.py            the folders, all or none
"""
