"""Figures printed in the paper, to compare ours with."""

TABLE_1 = {
    (100, 0.01): (-7327.1, 6.2, 7.0, 7.2, 7.7),
    (100, 1.0): (-7470.2, 3.0, 3.8, 3.8, 4.4),
    (100, 10.0): (-7583.8, 0.7, 1.2, 1.9, 2.1),
    (500, 0.01): (-7235.4, 8.6, 8.9, 9.6, 9.1),
    (500, 1.0): (-7789.4, 7.9, 8.2, 9.1, 8.9),
    (500, 10.0): (-8342.3, 3.8, 4.3, 5.0, 4.7),
    (1000, 0.01): (-7252.4, 56.3, 57.1, 57.1, 57.3),
    (1000, 1.0): (-8101.0, 54.0, 54.8, 54.6, 54.8),
    (1000, 10.0): (-9166.6, 28.4, 28.8, 29.2, 29.4),
}
"""Example 1 by (K, ratio): ELBO of DAVI, then what NG-HVI adds with 0, 1, 2 and 3 factors."""

EXAMPLE_2A = {
    "davi-published": {"r2_train": 0.7896, "r2_test": 0.6045, "minutes": 25.7},
    "sg-hvi": {"r2_train": 0.7527, "r2_test": 0.5425, "minutes": 2.5},
    "ng-hvi": {"r2_train": 0.8097, "r2_test": 0.6334, "minutes": 2.6},
    "sg-hvi 10000": {"r2_train": 0.8099, "r2_test": 0.6332, "minutes": 8.3},
}
EXAMPLE_2B = {
    "sg-hvi": {"r2_train": 0.6997, "r2_test": 0.6414, "minutes": 9.4},
    "ng-hvi": {"r2_train": 0.7574, "r2_test": 0.6881, "minutes": 133.2},
    "sg-hvi 10000": {"r2_train": 0.7382, "r2_test": 0.6740, "minutes": 31.3},
}
EXAMPLE_3 = {
    "naive": {"pce_train": 0.4992, "pce_test": 0.6958, "f1_train": 0.8693, "f1_test": 0.8605},
    "nagvac": {
        "pce_train": 0.4489, "pce_test": 0.4502, "f1_train": 0.8705, "f1_test": 0.8696, "steps": 42,
    },
    "nagvac no rule": {
        "pce_train": 0.1541, "pce_test": 0.1545, "f1_train": 0.9567, "f1_test": 0.9587,
    },
    "sg-hvi": {"pce_train": 0.1391, "pce_test": 0.1460, "f1_train": 0.9624, "f1_test": 0.9608},
    "ng-hvi": {"pce_train": 0.1220, "pce_test": 0.1241, "f1_train": 0.9673, "f1_test": 0.9648},
}  # fmt: skip
SUMMARY = {
    "example1": {"r": 1, "m": 8, "z": 1000, "K": 1000, "n": 5000, "p": 3, "lambda": 40,
                 "seconds_a_step": 0.01, "minutes": 0.3},
    "example2a": {"r": 6, "m": 88, "z": 6000, "K": 1000, "n": 6000, "p": 3, "lambda": 440,
                  "seconds_a_step": 0.05, "minutes": 8.3},
    "example2b": {"r": 17, "m": 2779, "z": 17000, "K": 1000, "n": 30000, "p": 3, "lambda": 13895,
                  "seconds_a_step": 16.5, "minutes": 133.2},
    "example3": {"r": 6, "m": 72, "z": 20000, "K": 1000, "n": 14000, "p": 1, "lambda": 216,
                 "seconds_a_step": 0.48, "minutes": 24.9},
}  # fmt: skip
"""The last table: sizes and times of NG-HVI."""
PANEL = {
    ("FF3", "DMM [8]"): {"r": 9, "m": 87, "z": 4932, "K": 548, "n": 309_960, "p": 3,
                         "seconds_a_step": 0.11, "minutes": 5.6},
    ("FF3", "DMM [32, 16, 8]"): {"r": 9, "m": 847, "z": 4932, "K": 548, "n": 309_960, "p": 5,
                                 "seconds_a_step": 0.89, "minutes": 44.7},
    ("FF5", "DMM [8]"): {"r": 9, "m": 103, "z": 4932, "K": 548, "n": 309_960, "p": 3,
                         "seconds_a_step": 0.12, "minutes": 6.1},
    ("FF5", "DMM [32, 16, 8]"): {"r": 9, "m": 911, "z": 4932, "K": 548, "n": 309_960, "p": 5,
                                 "seconds_a_step": 1.34, "minutes": 67.3},
}  # fmt: skip
"""The last table's rows of the asset pricing networks."""
FINANCE = {
    ("FF3", "Linear"): (-1.3297, -1.2502, 0.1635, 0.1073),
    ("FF3", "Random Intercept"): (-1.3297, -1.2502, 0.1635, 0.1073),
    ("FF3", "Random Coefficients"): (-1.3191, -1.2503, 0.1953, 0.1151),
    ("FF3", "FNN [8]"): (-1.3277, -1.2589, 0.1668, 0.0879),
    ("FF3", "DMM [8]"): (-1.2833, -1.2527, 0.2128, 0.0583),
    ("FF3", "FNN [32, 16, 8]"): (-1.3319, -1.2530, 0.1688, 0.1011),
    ("FF3", "DMM [32, 16, 8]"): (-1.2812, -1.2320, 0.1934, 0.1151),
    ("FF5", "Linear"): (-1.3294, -1.2511, 0.1639, 0.1052),
    ("FF5", "Random Intercept"): (-1.3294, -1.2511, 0.1639, 0.1052),
    ("FF5", "Random Coefficients"): (-1.3178, -1.2513, 0.2018, 0.1051),
    ("FF5", "FNN [8]"): (-1.3279, -1.2461, 0.1665, 0.1018),
    ("FF5", "DMM [8]"): (-1.2768, -1.2477, 0.2284, 0.0533),
    ("FF5", "FNN [32, 16, 8]"): (-1.3269, -1.2447, 0.1697, 0.1016),
    ("FF5", "DMM [32, 16, 8]"): (-1.2871, -1.2366, 0.1924, 0.1118),
}
"""Asset pricing: log score on training and test data, R2 on both."""
SIC_GROUPS = {
    "6726": ("Closed-end and unit investment trusts", 280),
    "6722": ("Open-end investment offices", 116),
    "6798": ("Real estate investment trusts", 100),
    "6020": ("Commercial banks", 68),
    "2834": ("Pharmaceutical preparations", 58),
    "6022": ("State commercial banks", 52),
    "6021": ("National commercial banks", 51),
    "1311": ("Crude petroleum and natural gas", 41),
    "7372": ("Prepackaged software", 37),
    "6331": ("Fire, marine and casualty insurance", 34),
    "3674": ("Semiconductors", None),
    "3841": ("Surgical and medical instruments", None),
}
"""Industries and the number of firms in the paper's panel, where it is among its ten largest."""
