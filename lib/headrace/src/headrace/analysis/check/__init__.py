"""What a config will do, said before it is run: what it resolves to, what it will read, and what will hurt."""
