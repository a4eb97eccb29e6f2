"""Counting models: n-grams counted, smoothed, stored, scored, and exchanged as ARPA files.

    counting.py    a shard of token ids becomes a sorted trie of counts
    merging.py     tries of several shards become one, in bounded memory
    trie.py        what a trie of counts is, and the links from an n-gram to its shorter self
    smoothing.py   counts become probabilities: a table of methods
    backoff.py     the finished model: arrays, scoring, the whole next-token distribution
    storage.py     the model as a memory-mapped file
    arpa_read.py, arpa_write.py      the exchange format of KenLM, SRILM and others

NumPy holds the arrays and numba compiles the loops (the extra `ngram`); torch is not needed here.
"""
