"""The HTTP routes of the inference server, one noun a file."""
