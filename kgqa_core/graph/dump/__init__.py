"""From a Freebase dump to coded Parquet parts, as one stream: nothing here needs to know the questions."""
