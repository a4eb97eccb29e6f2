"""From token ids to batches: encoded texts on disk, lanes for truncated BPTT, length buckets."""
