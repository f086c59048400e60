"""The explorer: a small graph network that walks from topic entities to scored candidates (EtD §3.2, DualR §3.2)."""
