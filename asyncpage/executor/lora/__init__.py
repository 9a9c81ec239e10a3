"""LoRA adapters in a batch: which rows run with which, their tensors, and what these add to a linear map."""
