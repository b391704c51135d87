"""What reproduces the paper: its studies, its asset pricing data, and the methods it compares with.

Fitting a model does not need any of this, except for ``method="davi"`` and other competing methods,
which are found in ``methods``.
"""
