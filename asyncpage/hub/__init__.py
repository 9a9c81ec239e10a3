"""Models by the name that they have on the Hugging Face Hub: found in its cache folder, and fetched into it."""
