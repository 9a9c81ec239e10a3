"""Model families: from a config and named tensors to hidden states and logits.

Read in this order: `model` (what the executor asks), `family` and `registry`, `llama` as the plainest family, then what
it is made of: `config`, `parts`, `decoder`, `attention`, `layers`, `rope`, `parameter`.
Then what a few families have: `experts` with their `router`, and `latent_attention`.
"""
