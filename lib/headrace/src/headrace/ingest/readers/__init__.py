"""One small reader a container: files in, records out. :data:`headrace.ingest.documents.READERS` chooses.

Libraries that only one container needs are imported when a file of it is read; if one is missing, the error names the
extra that brings it.
"""
