"""A model and a batch become a loss."""
