"""Draws from, and integrals over, p(effects | theta, y). Effects are handled whitened.

With Omega^-1 = L L' the effects are ``alpha = L^-T u``, u ~ N(0, I). In terms of u every matrix to
be factorised is ``I + ...``, which is well conditioned whether Omega is tiny or huge.
"""
