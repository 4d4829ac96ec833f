"""Compares pystreams with the plain C calls and its peers; see __main__."""
