"""What every folder uses: errors, files, the log.

errors.py         every error raised on purpose, and its exit code
files.py          files that are whole or absent; .npy without pickle; safe paths
gloo.py           threads of torch.distributed at the end of a process
integers.py       whole numbers as callers give them, or each once
listed_folder.py  folders that are whole or absent, and replaced only where they were made here
log.py            the logger, lines that users parse, bars, manners of a terminal
machine.py        how many cores and how much memory there are to use, and what processor
text_table.py     rows as aligned lines for a person
types.py          the nouns and the letters of shapes: Side, Batch
writer.py         a terminal or pipe that may take nothing, written by a thread of its own
"""
