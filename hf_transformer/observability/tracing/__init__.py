"""OpenTelemetry: a span per predict request and one for each of its stages, sent to a collector."""
