"""Strange input, seeded: ``python -m benchmarks.fuzz``.

Frames, formulas, settings and damaged files go in; what comes out is counted:

    right               a result that agrees with an oracle, where there is one, and is finite
    warning             the same with a warning, or a result whose verdict admits that it is not
    clear error         an exception of the family nghvi.InputError; on the command line one line
    wrong               a result that disagrees with the oracle, bad input that was accepted, good
                        input that was refused
    raw traceback       any other exception
    silent non-finite   numbers that are not finite, and not a word about it
    hang                no answer within a bounded time

The last four must be 0. ``--only CASE`` runs a case again and shows what it did.
"""
