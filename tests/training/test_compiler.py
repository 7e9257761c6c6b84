"""Options of XLA's compiler: those it does not know are left out, and other platforms get none."""

import jax

from uvax.training import compiler


def test_this_version_of_xla_knows_all_of_them():
    assert compiler.options() == compiler._CPU_OPTIONS


def test_an_option_that_xla_no_longer_knows_is_left_out(monkeypatch):
    known = dict(compiler._CPU_OPTIONS)
    monkeypatch.setattr(compiler, "_CPU_OPTIONS", {"xla_cpu_of_last_year": 1, **known})
    assert compiler.options() == known


def test_another_platform_gets_none(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler.options() == {}
