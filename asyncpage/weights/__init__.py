"""Model files as one vocabulary of settings and tensors, whatever container they came in."""
