"""Checks a config before it is run: what it resolves to, what it will read, and what will cause
problems.
"""
