"""Serving language models: many streams of tokens from one model at once.

    prefixes.py    states of prefixes that were read before
    streams.py     what a stream is: a request going in, tokens coming out
    batch.py       continuous batching: streams that advance together, join and leave at any token
    engine.py      the thread that drives a batch
    http/          the same over HTTP, for programs that already speak to language models

The engine handles ids; text begins at the edge, in `http`.
"""
