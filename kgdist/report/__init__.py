"""What a run is like, for a person: report.html, comparisons. Words and markup are in templates/, numbers and names here.

attributes_report.py  the page of a folder of attributes
charts.py      numbers to figures
comparison.py  several runs side by side: facts, text forms, page
facts.py       what a run's embeddings tell: ranks, degrees, domains, examples, a picture
inspection.py  what a data set is like, and what of it would distort results
inspection_report.py  the page of a data set
page.py        a template and its facts to one file with all in it
report.py      report.html
run_facts.py   what a run's files tell: options, command, metrics, versions
search_report.py  report.html of a search: history, importance of options, curves of trials
standings.py   intervals of the runs' metrics, and whether they differ
"""
