"""Where rows live: in memory, shared, or served by other machines.

answers.py        what a server answers to questions, in pieces
asked.py          what a client has asked for
asking.py         questions to machines, and who answers them
buffers.py        memory that messages are made in
catalogue.py      which tables there are, and what each is
client.py         tables whose rows lie on many machines
connection.py     a client's connections: to one server, and all on one socket
door.py           what strangers' connections may cost
holdings.py       the rows that a server answers for
identity.py       what both sides of a connection must agree on
layout.py         which server owns which rows
messages.py       what goes over the wire, packed and parsed
optim.py          row-sparse optimisers, learning-rate schedules
places.py         addresses, ports and who has them, how many connections may be
server.py         a machine's rows, served
session.py        every push once, whatever the network does
shared_memory.py  the memory of tables: private or shared, huge pages
store.py          a client's place in a store: tables that come and go, assignments, questions
tables.py         where rows live: pull, push
wire.py           sockets, their limits and keys
"""
