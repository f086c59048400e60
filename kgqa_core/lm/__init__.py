"""Language models behind one interface: local folders, HTTP endpoints, the embedded model; their tuning and cost."""
