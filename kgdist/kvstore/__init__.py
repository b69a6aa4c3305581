"""Where rows live: in memory, shared, or served by other machines.

asked.py          rows that were asked for, as they come
buffers.py        memory that messages are made in
client.py         tables whose rows lie on many machines
connection.py     one server, as a client sees it
connections.py    all of them, on one socket
door.py           what strangers' connections may cost
layout.py         which server owns which rows
messages.py       what goes over the wire, packed and parsed
optim.py          row-sparse optimisers, learning-rate schedules
places.py         addresses, ports and who has them
server.py         a machine's rows, served
session.py        every push once, whatever the network does
shared_memory.py  the memory of tables: private or shared, huge pages
tables.py         where rows live: pull, push
wire.py           sockets, their limits and keys
"""
