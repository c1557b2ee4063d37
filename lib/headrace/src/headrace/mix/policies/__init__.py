"""Policies other than quotas: sequences of other systems, and the registry of the names that
configs use.
"""
