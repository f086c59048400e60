"""A small language model of the pipeline's own: its tokenizer and weights come from the graph and the questions."""
