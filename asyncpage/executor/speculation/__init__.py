"""What makes drafts: guesses at the next tokens of rows, which one forward pass of the model then verifies."""
