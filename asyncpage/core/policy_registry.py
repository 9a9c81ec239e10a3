"""Finds scheduling policies, the built-in ones and those of entry points.

Asked by the engine before anything is started, and by the scheduler at birth.

INVARIANT: what `load_policy` returns keeps the contract of `policy.Policy` in form.
"""

from __future__ import annotations

from typing import Any

from asyncpage.core.plugin_group import PluginGroup, breaches_of_method
from asyncpage.core.policy import API, Fcfs, LongestPrefix, Policy, Priority

BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in (Fcfs, Priority, LongestPrefix)}


def _breaches(policy: Any) -> tuple[str, ...]:
    undecided = not isinstance(getattr(policy, "wants_hits", None), bool)
    return (
        *(("'wants_hits' must be True or False: whether its keys depend on hit_blocks",) if undecided else ()),
        *breaches_of_method(policy, "key", ("self", "sequence")),
    )


POLICIES: PluginGroup[Policy] = PluginGroup(
    "asyncpage.policies",
    what="scheduling policy",
    flag="--scheduling-policy",
    api=API,
    built_in=BUILT_IN,
    breaches=_breaches,
)


def policy_names() -> tuple[str, ...]:
    """Every policy that can be asked for: the built-in ones, then plugins by name. None is loaded for this."""
    return POLICIES.names()


def load_policy(name: str) -> Policy:
    """A new object of the policy called `name`.

    Errors: `UsageError` when there is none, when two claim the name, or when the plugin breaks the contract: it names
    the plugin, what is wrong with it and what to do.
    """
    return POLICIES.load(name)
