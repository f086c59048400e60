"""kgqa_core: the library. Knows nothing of Prefect or MLflow, so that it can be used from a notebook or a worker."""
