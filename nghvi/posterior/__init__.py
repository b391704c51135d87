"""From a fitted q to draws, predictions and labelled output."""
