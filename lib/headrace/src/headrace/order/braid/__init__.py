"""The braided shuffle: strands of keyed blocks, one source at a time or all sources of a mixture in
one pass.
"""
