"""Choosing tokens from next-token distributions. Ids only: text is made at the edge.

Reading order: `config` (every setting), `prefix` (a prompt becomes a state), `processors` (each
scheme's definition), `sample` (token by token, many rows at once), `beam` (the most probable
whole), `next_token` (the distribution itself), `stop` (stop sequences in streamed text).
"""
