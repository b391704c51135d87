"""Deep mixed models: predictions of this library and of its peers.

``python -m benchmarks deep`` simulates a network with random output-layer coefficients, fits it
by every method, each in a fresh process, prints one table per seed and writes
``benchmarks/results/deep.json``. A method is a module with

    fit(task, seed)            the fit, tuning included; its time is the method's time
    predict(task, fitted)      a Prediction of the test rows

and imports its package itself; this file imports nothing.
"""
