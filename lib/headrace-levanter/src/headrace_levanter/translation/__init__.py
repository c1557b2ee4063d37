"""Translates data configs of Levanter and Marin to headrace's, and notes what differs and what is
missing.
"""
