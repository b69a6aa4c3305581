"""The search for good options.

space.py   what may be chosen
study.py   the search: what is chosen, who is stopped early, what became of it
trial.py   a training that is one trial of a search
trials.py  the folder of a search
"""
