"""Graph encoders: an entity's row is made of its neighbourhood, and the score functions read such rows as they read any.

encode.py         the rows of all entities, layer by layer, in bounded memory
encoder.py        the networks by name, and their weights as one row of a table
message_graph.py  training triples, and their inverses, as what messages travel by
"""
