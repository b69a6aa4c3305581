"""The search for good options.

kcore.py   the well-connected part of a graph
rounds.py  on parts of the graph first, and for few epochs
space.py   what may be chosen
study.py   the search: what is chosen, who is stopped early, what became of it
trials.py  the folder of a search, and the processes of its trials
"""
