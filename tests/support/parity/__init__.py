"""What torch and pystreams are compared by: facts.py finds out, of either,
what programs.txt asks; reasons.py says which differences are meant."""
