"""The paper's own numbers, as data, to stand beside ours."""

METHODS = ("dqn", "bdqnp3", "bdqnp15", "bdqnp35", "dqn-rnd", "dqn-rnd-p", "uvu")

LABELS = {
    "dqn": "DQN",
    "bdqnp": "BDQNP",
    "bdqnp3": "BDQNP(3)",
    "bdqnp15": "BDQNP(15)",
    "bdqnp35": "BDQNP(35)",
    "dqn-rnd": "DQN-RND",
    "dqn-rnd-p": "DQN-RND-P",
    "uvu": "UVU",
}

SIZES = (5, 6, 7, 8, 9, 10)

# Table "gotodoor": mean return and the half width of the 90% Student-t interval, columns in the order of METHODS.
_TABLE1 = {
    5: ((5.50, 0.15), (8.69, 0.24), (10.50, 0.04), (10.58, 0.03), (3.94, 0.50), (10.41, 0.12), (10.54, 0.03)),
    6: ((4.93, 0.12), (7.66, 0.09), (9.39, 0.04), (9.57, 0.04), (1.99, 0.40), (9.28, 0.12), (9.54, 0.03)),
    7: ((4.58, 0.09), (6.61, 0.16), (8.49, 0.05), (8.75, 0.06), (2.66, 0.43), (8.12, 0.23), (8.73, 0.04)),
    8: ((4.06, 0.12), (5.91, 0.10), (7.68, 0.05), (7.92, 0.05), (2.53, 0.54), (7.40, 0.14), (8.03, 0.04)),
    9: ((3.66, 0.09), (5.04, 0.08), (6.69, 0.07), (7.03, 0.13), (2.39, 0.38), (6.39, 0.19), (7.29, 0.10)),
    10: ((3.39, 0.11), (4.64, 0.14), (6.09, 0.13), (6.53, 0.16), (2.25, 0.48), (5.64, 0.17), (6.72, 0.12)),
}
TABLE1 = {size: dict(zip(METHODS, row, strict=True)) for size, row in _TABLE1.items()}

# What the paper's table says about pairs of methods: (a, b, whether "a at or above b" is meant, or "a above b").
CLAIMS = (
    ("uvu", "bdqnp35", True),
    ("uvu", "bdqnp15", True),
    ("uvu", "bdqnp3", False),
    ("uvu", "dqn-rnd-p", True),
    ("bdqnp35", "bdqnp15", True),
    ("bdqnp15", "bdqnp3", False),
    ("bdqnp3", "dqn", False),
    ("dqn-rnd-p", "dqn-rnd", False),
    ("dqn", "dqn-rnd", False),
)

# Table "hpsearchspace".
RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
PRIOR_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)

# Figure "gotodoor" (b): the ensembles that were timed.
ENSEMBLES = (1, 3, 5, 10, 15, 25, 35)


def label(method: str) -> str:
    """A method's name as the paper prints it; of one of your own, "module:Class", the class."""
    return LABELS.get(method, method.rpartition(":")[2])
