"""tasks: thin Prefect tasks around the library, and the two services around it, Prefect's server and MLflow's store."""
