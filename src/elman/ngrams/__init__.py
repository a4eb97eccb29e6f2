"""A library of n-gram counts and back-off models: count, smooth, store, score, exchange as ARPA.

    reading.py     text files to token ids, in one pass if tokens are words (stretch_table.py
                   numbers them, vocabulary.py sorts them)
    counting.py    token ids to a sorted trie of counts (trie.py)
    stages.py      the same over files, in shards, if memory is limited (scratch.py) or on several
                   machines (cluster.py); merging.py, trie_files.py: sorted runs of counts
    smoothing.py   counts to probabilities: the table of methods, and pruning
                   (interpolation.py, kneser_ney.py, jelinek_mercer.py, katz.py)
    backoff.py     the finished model: scores and distributions (compiled loops: walking.py)
    storage.py     the model as a memory-mapped file (mapped.py: the file format)
    arpa_files.py  the exchange format of KenLM, SRILM and others (arpa_read.py, arpa_parse.py,
                   arpa_write.py; from_lists.py: unsorted n-grams to a model)
    statistics.py  perplexity, unseen n-grams, size by order

NumPy holds the arrays and numba compiles the loops (the extra `ngram`); torch is not imported.
"""
