"""The comparison of torch and pystreams: facts.py runs the programs of
programs.txt with either, and reasons.py has the intended differences."""
