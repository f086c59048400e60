"""What is asked of a language model: one file per instruction, with its prompt, target, parse and constraint."""
