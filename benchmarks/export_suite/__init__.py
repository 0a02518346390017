"""Common classifiers as common exporters write them: small, with random weights, made on the spot."""
