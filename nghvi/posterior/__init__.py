"""Turns a fitted variational distribution into draws, predictions and labelled results."""
