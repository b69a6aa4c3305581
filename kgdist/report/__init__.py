"""What a run is like, for a person: report.html, comparisons.

about.py     options, command, versions, machine
charts.py    numbers to figures
compare.py   several runs side by side
compared.py  that as a page
degree.py    degree against rank
examples.py  questions, answers and the truth
folder.py    what a run's files say
markup.py    HTML that nothing breaks
opened.py    its data and embeddings, and what is counted of them
page.py      one file with all in it
picture.py   entities as points
report.py    report.html
sections.py  tables and cards
"""
