"""Language models over HTTP, for programs that already speak to language models.

prefixes.py    states of prefixes that were read before
streams.py     what a stream is: a request going in, tokens coming out
batch.py       continuous batching: streams that advance together, join and leave at any token
engine.py      the thread that drives a batch
schema.py      the wire format: every request and answer
served.py      what is served: models by name, what each can do, limits
speaking.py    from ids to text, at the edge
app.py         the application: keys, limits, errors, routes
"""
