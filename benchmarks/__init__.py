"""pystreams beside the plain C calls and beside its peers: see __main__."""
