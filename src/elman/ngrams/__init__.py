"""Counting models: n-grams counted, smoothed, stored, scored, and exchanged as ARPA files.

    reading.py     text becomes token ids, in one pass where the tokens are words
    counting.py    a shard of token ids becomes a sorted trie of counts
    merging.py     tries of many shards become one, on disk where memory is short (scratch.py)
    trie.py        what a trie of counts is, and the links from an n-gram to its shorter self
    smoothing.py   counts become probabilities: the table of methods, each from its own file
    backoff.py     the finished model: scores and distributions (its loops are in walking.py)
    storage.py     the model as a memory-mapped file (mapped.py: any arrays as one)
    sparse_matrix.py     the sparse non-negative matrix model of n-grams and skip-grams (counted in
                   skipgrams.py, weighted in adjustment.py; its loops are in sparse_loops.py)
    arpa_read.py, arpa_write.py      the exchange format of KenLM, SRILM and others

NumPy holds the arrays and numba compiles the loops (the extra `ngram`); torch is not needed here.
"""
