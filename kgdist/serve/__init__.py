"""A trained run that answers over HTTP: names in, names out, questions of many clients scored together.

answering.py     questions in JSON -> ids; what one product answers; answers by name
app.py           the paths, who may ask, limits, metrics
explorer.py      the page to explore, whose files lie in page/
gatherer.py      questions of all requests that wait, answered together by one thread
listener.py      the socket, connections that are too slow, signals
live.py          the run as it is served, and the one that takes its place when the files change
lookup.py        names and labels -> ids, ids -> names with labels
openapi.py       the interface, described for programs
"""
