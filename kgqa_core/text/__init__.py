"""Text to vectors: the encoder protocol, its implementations, and the cache that encodes no text twice."""
