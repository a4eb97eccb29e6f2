"""Make batches of token ids: encoded texts on disk, lanes for truncated BPTT, length buckets."""
