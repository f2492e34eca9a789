"""Sweeps: from one declarative page to finished trials, whichever engine runs them."""
