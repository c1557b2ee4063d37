"""Caches in Levanter's form: read in place, and written from caches of any form."""
