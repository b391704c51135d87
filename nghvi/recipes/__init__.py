"""Recipes: compositions of the core's parts that start, run, stop and judge themselves."""
