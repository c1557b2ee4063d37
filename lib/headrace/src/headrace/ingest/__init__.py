"""Making token caches: files (source), documents, tokens (tokenize), parts (plan), the pipeline (engine), the build."""
