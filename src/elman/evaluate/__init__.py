"""Measure with a language model, and measure the model.

`perplexity` scores a whole encoded text, `sequences` id sequences by the chain rule, `surprisal`
raw text per token, word or line by the rules of `policies`; `embeddings` turns words and sequences
into vectors. All are written against `models.interface`, and none holds more than a window of its
input.
"""
