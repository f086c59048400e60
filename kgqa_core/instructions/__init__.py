"""What is asked of a language model: each instruction with its prompt, target, parse and constraint."""
