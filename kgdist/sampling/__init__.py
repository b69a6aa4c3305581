"""What a step compares its positives with.

negatives.py  the candidates of each step
"""
