"""LoRA adapters in the format of PEFT: their settings, their files, and those that are loaded by name. Torch-free."""
