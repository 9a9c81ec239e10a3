"""Finding, judging and choosing backends, with plugins that are whole, old, broken or not there."""

import importlib.metadata
import sys
from dataclasses import dataclass, field, replace

import pytest

from asyncpage.backends import registry
from asyncpage.backends.contract import AttentionSpec, DeviceInfo
from asyncpage.backends.cpu import CpuBackend
from asyncpage.backends.native import NativeBackend
from asyncpage.backends.reference import ReferenceBackend
from asyncpage.errors import UsageError

SPEC = AttentionSpec("mha", 6, 2, 64, 64, "float32", "float32", 16)
CPU = DeviceInfo("cpu", "x86_64")
H200 = DeviceInfo("cuda", "sm90")


class Fine(ReferenceBackend):
    """A third party's fine backend. More words."""

    name = "fine"


class FromTheFuture(ReferenceBackend):
    api = 3


class OfContract1(ReferenceBackend):
    api = 1
    copy_tokens = None


class Unversioned(ReferenceBackend):
    api = "one"


class Armless(ReferenceBackend):
    run = None

    def plan(self, batch):
        return None


class Moody(ReferenceBackend):
    @classmethod
    def unsupported(cls, spec, device):
        raise RuntimeError("no driver")


NOT_A_CLASS = 7


@dataclass(frozen=True, slots=True)
class SpecOfContract3(AttentionSpec):
    twist: int = field(default=0, metadata={"since": 3})


@pytest.fixture
def plugins(monkeypatch):
    """Replaces the installed plugins by the named objects of this module, beside the two built in."""

    def install(**targets):
        module = sys.modules[SpecOfContract3.__module__]
        monkeypatch.setitem(sys.modules, "plugin_home", module)
        values = {
            "reference": "asyncpage.backends.reference:ReferenceBackend",
            "cpu": "asyncpage.backends.cpu:CpuBackend",
            **{name: f"plugin_home:{target}" for name, target in targets.items()},
        }
        entries = [
            importlib.metadata.EntryPoint(name, value, registry.GROUP) for name, value in values.items() if value
        ]
        monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])

    return install


def test_the_installed_package_brings_three_backends_and_auto_takes_the_fastest():
    assert registry.choose("auto", SPEC, CPU) is NativeBackend
    assert registry.choose("cpu", SPEC, CPU) is CpuBackend
    assert registry.choose("reference", SPEC, CPU) is ReferenceBackend
    verdicts = {verdict.name: verdict for verdict in registry.explain(SPEC, CPU)}
    assert verdicts["native"].is_chosen
    assert not verdicts["cpu"].is_chosen
    assert verdicts["cpu"].origin.startswith("asyncpage ")
    # 16 tokens of 2 heads of 64 float32 items, keys and values
    assert "16,384 bytes a block" in verdicts["cpu"].gives
    assert not verdicts["reference"].is_chosen
    assert "only when asked for by name" in verdicts["reference"].gives


def test_every_spec_must_be_served():
    with pytest.raises(UsageError, match="needs causal attention"):
        registry.choose("cpu", [SPEC, replace(SPEC, causal=False)], CPU)


def test_a_backend_that_cannot_serve_is_refused_with_its_reasons_when_named():
    with pytest.raises(UsageError) as caught:
        registry.choose("cpu", SPEC, H200)
    assert str(caught.value) == (
        "Attention backend 'cpu' cannot run this model on cuda (sm90).\n"
        "  cpu   needs a cpu, found cuda (sm90)\n"
        "Pass --attention-backend auto to use one that can."
    )


def test_when_none_can_serve_each_is_listed_and_the_reference_offered(plugins):
    plugins(myvendor="FromTheFuture")
    with pytest.raises(UsageError) as caught:
        registry.choose("auto", SPEC, H200)
    assert str(caught.value) == (
        "No attention backend can run this model here.\n"
        "  cpu        needs a cpu, found cuda (sm90)\n"
        "  myvendor   built for contract 3, this asyncpage speaks contract 2\n"
        "Pass --attention-backend reference to run slowly anywhere."
    )


def test_the_reference_is_not_offered_where_it_cannot_serve_either():
    with pytest.raises(UsageError) as caught:
        registry.choose("auto", replace(SPEC, kind="encoder"), CPU)
    assert "Pass" not in str(caught.value)
    assert "  reference   needs kind mha or mla, found encoder" in str(caught.value)


def test_an_unknown_name_is_answered_with_the_installed_ones():
    with pytest.raises(UsageError, match=r"There is no attention backend 'cpux'; installed: native, cpu, reference\."):
        registry.choose("cpux", SPEC, CPU)


def test_a_strangers_backend_comes_after_ours_and_before_the_reference(plugins):
    plugins(fine="Fine")
    assert [verdict.name for verdict in registry.explain(SPEC, CPU)] == ["cpu", "fine", "reference"]
    assert registry.choose("auto", SPEC, CPU) is CpuBackend
    assert registry.choose("auto", SPEC, H200).name == "fine"
    assert registry.explain(SPEC, H200)[1].gives.startswith("A third party's fine backend. More words;")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("Nowhere", "cannot be loaded: AttributeError"),
        ("NOT_A_CLASS", "its entry point names 7, which is not a class"),
        ("Unversioned", "has no contract version: 'api' must be a whole number"),
        ("Armless", "hook 'plan' does not take (self, batch, workspace, slot)"),
        ("Armless", "has no hook 'run'"),
        ("Moody", "unsupported() raised RuntimeError: no driver"),
    ],
)
def test_a_broken_plugin_is_reported_by_name_and_stops_only_who_chose_it(plugins, target, reason):
    plugins(broken=target)
    verdict = next(verdict for verdict in registry.explain(SPEC, CPU) if verdict.name == "broken")
    assert verdict.is_broken
    assert reason in "; ".join(verdict.reasons)
    assert registry.choose("auto", SPEC, CPU) is CpuBackend
    with pytest.raises(UsageError) as caught:
        registry.choose("broken", SPEC, CPU)
    assert reason in str(caught.value)


def test_a_plugin_whose_library_is_missing_is_told_by_what_to_install(plugins, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "asyncpage.backends.reference")
    plugins()
    verdict = next(verdict for verdict in registry.explain(SPEC, CPU) if verdict.name == "reference")
    assert verdict.is_broken
    assert verdict.reasons[0].endswith("install asyncpage[torch]")


def test_an_older_backend_is_refused_only_what_it_cannot_know(plugins):
    plugins(fine="Fine")
    values = {name: getattr(SPEC, name) for name in AttentionSpec.__dataclass_fields__}
    assert registry.choose("fine", SpecOfContract3(**values), CPU) is not None
    with pytest.raises(UsageError, match="built for contract 2, which does not know 'twist'"):
        registry.choose("fine", SpecOfContract3(**values, twist=3), CPU)


def test_a_backend_of_a_contract_that_is_not_served_any_more_is_told_so(plugins):
    plugins(old="OfContract1")
    with pytest.raises(UsageError, match="built for contract 1, this asyncpage speaks contract 2"):
        registry.choose("old", SPEC, CPU)


def test_load_gives_a_backend_whatever_it_can_serve():
    assert registry.load("cpu") is CpuBackend
    with pytest.raises(UsageError, match="There is no attention backend 'none'"):
        registry.load("none")
