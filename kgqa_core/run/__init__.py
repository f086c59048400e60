"""A run from its configuration to answers: stages, what is done, opening, asking, comparing, serving, SQL."""
