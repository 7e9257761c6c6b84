"""Settings of all tests: strict dtype promotion, checked shapes, one thread for each test process."""

import os
import signal

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# jax reads these when it is imported, and processes that tests start inherit them. With one thread each, two workers
# of pytest-xdist do not fight over two cores; Eigen, XLA's other work and NumPy have a pool each.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
for _pool in ("PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")

# Before anything imports uvax: shapes and types of every function are checked, in tests only.
install_import_hook("uvax", "typechecking.check")

# The first example of a test compiles, so there is no deadline; the same examples in every run, so that a failure in
# continuous integration is the failure at home.
settings.register_profile("uvax", deadline=None, derandomize=True)
settings.load_profile("uvax")


@pytest.fixture
def without_type_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user runs: no type checker, so that uvax's own refusal of an argument of the wrong type is reached."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)


# A job in the background of a shell ignores Ctrl-C, and so would every process that the tests interrupt on purpose.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
