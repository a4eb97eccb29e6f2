"""Losses and training regimes that several tasks share."""
