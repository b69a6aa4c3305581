"""The Python API.

estimator.py  fit, score, predict, as scikit-learn has it
functions.py  training, loading and data sets from Python
results.py    a table of answers, the embeddings of a run, the report of an evaluation
run.py        a trained run in Python
"""
