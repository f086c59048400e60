"""What plays a language model in diagnoses: the oracle, chance, a script."""
