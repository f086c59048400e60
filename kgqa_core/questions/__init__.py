"""Questions: files in, records linked to the graph out, with everything doubtful counted."""
