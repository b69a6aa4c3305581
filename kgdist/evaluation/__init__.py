"""Exact ranks, and what is made of them.

candidates.py  whom a true entity is ranked against, and who does not count
counting.py    how many candidates beat the true entity, exactly
evaluator.py   the ranks of a split, on several threads
ranks.py       ranks to MRR, MR, HITS@k, AMRI
scorer.py      scores in float64
shared.py      the same by the processes of several machines
text.py        metrics as lines and tables
threads.py     blocks of one computation dealt out to threads
"""
