"""What a run is like, for a person: report.html, comparisons. Words and markup are in templates/, numbers and names here.

about.py     options, command, versions, machine
charts.py    numbers to figures
compare.py   several runs side by side: facts, text forms, page
examples.py  questions, answers and the truth
facts.py     what a run's embeddings tell: ranks, degrees, domains
folder.py    what a run's files tell
page.py      a template and its facts to one file with all in it
picture.py   entities as points
report.py    report.html
"""
