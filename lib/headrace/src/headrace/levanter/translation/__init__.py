"""Data configs of Levanter and Marin as configs of headrace: what is the same, what differs, what is missing."""
