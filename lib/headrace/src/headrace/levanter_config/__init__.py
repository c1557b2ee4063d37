"""Data configs of Levanter and Marin, said as headrace's: what is the same, what differs, what has no counterpart."""
