"""The messages between server and clients: names of records, and models as arrays."""
