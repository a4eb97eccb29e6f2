"""The training loop, optimisers, schedules, budgets, checkpoints and reports."""
