"""The training loop, optimisers, schedules, checkpoints and reports."""
