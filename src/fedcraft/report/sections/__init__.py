"""The sections of the page: each a function from a problem to plain data, ``None`` without any."""
