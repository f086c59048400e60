"""What plays a language model where there is none at hand: a script, an oracle, chance, always the first."""
