"""One small reader per container: files in, records out. :data:`headrace.ingest.choices.FORMATS`
names it.

Libraries that only one container needs are imported when such a file is read; if one is missing,
the error names the extra that installs it.
"""
