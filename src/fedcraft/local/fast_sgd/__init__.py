"""SGD steps written out by hand: the same numbers as autograd, in less time."""
