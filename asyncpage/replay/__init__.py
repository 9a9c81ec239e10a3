"""Reading a journal again: the recorded inputs through today's code, and the recorded decisions as lines of text."""
