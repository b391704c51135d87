"""Problems x methods: this library and its peers, all in one run.

``python -m benchmarks run`` fits every problem by every method, each in a fresh process, prints
one table per problem and writes a JSON file under ``benchmarks/results``. This package imports
nothing here, because the time of its imports is part of what is measured.
"""
