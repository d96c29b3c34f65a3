"""Speed: the service, the bare predictor and the peers under the same load. See benchmarks/README.md."""
