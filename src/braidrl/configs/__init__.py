"""The whole run as typed data. Imports neither torch, transformers nor verifiers."""
