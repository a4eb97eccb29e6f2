"""Serve language models: many streams of tokens from one model at once.

    prefixes.py        cache of states after prefixes
    streams.py         a continuation that is asked for, and its stream of tokens
    stream_batch.py    continuous batching: streams advance together, join and leave at any token
    prompts.py         the prompts of streams: waiting, and read in pieces
    batch_rows.py      the rows of a batch, a stream in each
    engine.py          the thread that drives a batch
    limits.py          limits on requests
    serving.py         the options of a server
    refusals.py        reasons to refuse a request that is valid
    http/              the OpenAI API and Elman's own routes
    workers/           several processes that serve the same models

The engine handles ids; `http` encodes and decodes text.
"""
