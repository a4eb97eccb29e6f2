"""The lab: the lectures' claims as experiments, and exercises with a check."""
