"""Executors: where the clients of a round are trained, with the same bits everywhere."""
