"""The client side: a ClientApp that trains and evaluates by a method's local objective."""
