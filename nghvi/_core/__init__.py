"""The small core: interfaces, the algorithm, the loop. It knows no concrete model or family."""
