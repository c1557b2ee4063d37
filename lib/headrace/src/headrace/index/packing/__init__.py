"""Static pack plans: which documents share a row, decided once from their lengths."""
