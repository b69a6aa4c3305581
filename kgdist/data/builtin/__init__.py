"""The known graphs, shipped or downloaded.

archive.py  a zip archive, fetched over HTTP and unpacked without trusting it
catalog.py  the known sets, shipped or downloaded
"""
