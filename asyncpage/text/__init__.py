"""Text on both sides of the model: vocabularies, tokens, chat templates, and answers that are safe to send."""
