"""The server side: the strategy, its rounds, and the treatment of replies."""
