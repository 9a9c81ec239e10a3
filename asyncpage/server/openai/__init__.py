"""OpenAI's older routes: chat and text completions, embeddings, models; and the token routes beside them."""
