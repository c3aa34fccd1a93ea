"""The server side: the strategy, its rounds, and what it does with every reply."""
