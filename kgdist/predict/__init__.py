"""The likeliest answers, the most similar rows.

answers.py    answers to files and the terminal
classification.py  which triples are true, by a threshold for each relation
engine.py     the likeliest triples, on several threads
explain.py    ranks and probabilities of answers
index.py      approximate search for large tables
lists.py      what a user lists, to ids, and DGL-KE's ways to ask for it
questions.py  what is asked, and the best answers so far
relations.py  the likeliest relations between two entities
similar.py    the most similar embeddings, and what says how similar they are
sweep.py      the pass over candidates
"""
