"""Batch files: requests line by line in, answers line by line out, in the OpenAI API's own format."""
