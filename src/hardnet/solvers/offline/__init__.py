"""What is found out about a constant set once, when a layer is made."""
