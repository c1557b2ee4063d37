"""What lies on disk: ragged zarr3 stores, ledgers, token caches. The only place that knows TensorStore and fsspec."""
