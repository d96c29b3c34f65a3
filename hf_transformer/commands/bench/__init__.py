"""``hf-transformer bench``: measures a service's throughput and latency, and finds faster settings."""
