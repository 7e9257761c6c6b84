"""The type checker of the tests: beartype, with whole numbers accepted for floats as Python's types have it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
