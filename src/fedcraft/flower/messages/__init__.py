"""What travels between a server and its clients: the names of records, and models as arrays."""
