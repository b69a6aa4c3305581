"""The known graphs, shipped or downloaded.

archive.py   a zip file, unpacked without trusting it
catalog.py   the known sets, shipped or downloaded
download.py  one file over HTTP, resumed and checked
"""
