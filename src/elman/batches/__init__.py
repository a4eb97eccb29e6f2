"""From token ids to batches: encoded corpora on disk, lanes for truncated BPTT, buckets for sentences."""
