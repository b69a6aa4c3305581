"""Where rows live: in memory, shared, or served by other machines.

buffers.py        memory that messages are made in
client.py         tables whose rows lie on many machines, and what was asked for
connection.py     a client's connections: to one server, and all on one socket
door.py           what strangers' connections may cost
layout.py         which server owns which rows
messages.py       what goes over the wire, packed and parsed
optim.py          row-sparse optimisers, learning-rate schedules
places.py         addresses, ports and who has them, how many connections may be
server.py         a machine's rows, served
session.py        every push once, whatever the network does
shared_memory.py  the memory of tables: private or shared, huge pages
tables.py         where rows live: pull, push
wire.py           sockets, their limits and keys
"""
