"""Tuning of a local model on instruction data: LoRA adapters or all weights, mixtures of instructions, exact resume."""
