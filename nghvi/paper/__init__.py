"""What reproduces the paper: its studies, its asset pricing data, and the methods it compares with.

Nothing here is needed to fit a model; ``method="davi"`` and the like are looked up in ``methods``.
"""
