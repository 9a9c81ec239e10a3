"""What a model thinks before it answers: how it is told apart from the answer."""
