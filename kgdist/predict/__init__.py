"""The likeliest answers, the most similar rows.

answers.py    answers to files and the terminal
ask.py        DGL-KE's ways to ask
engine.py     the likeliest triples, on several threads
explain.py    ranks and probabilities of answers
facts.py      which triples are known
index.py      approximate search for large tables
lists.py      what a user lists, to ids
measures.py   the functions that say how similar two are
questions.py  what is asked, and the best answers so far
similar.py    the most similar embeddings
sources.py    where the lists of a question come from
sweep.py      one pass of queries over all candidates
"""
