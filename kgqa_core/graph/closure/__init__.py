"""From coded parts to a graph: the k-hop closure of the questions, dense ids, sorted shards, CSR."""
