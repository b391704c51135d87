"""The core: interfaces, the algorithm and its loop. It knows no concrete model or family."""
