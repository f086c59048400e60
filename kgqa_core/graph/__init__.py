"""The knowledge graph: files in, sorted Parquet shards and a memory-mapped index out. Imports neither torch nor
transformers, so that a worker that only builds shards needs neither."""
