"""The search for good options.

search.py  trials at work
space.py   what may be chosen
study.py   what is chosen, and who is stopped early
trial.py   a training that is one trial of a search
trials.py  the folder of a search
"""
