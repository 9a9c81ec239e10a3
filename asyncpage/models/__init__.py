"""Model families: from a config and named tensors to hidden states and logits.

Read in this order: `model` (what the executor asks), `registry` and `config`, `llama`, then `layers` and `rope`.
"""
