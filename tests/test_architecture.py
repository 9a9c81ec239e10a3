"""The walls of the house, read from the source: who imports whom, what stays out, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "asyncpage"

MOST_LINES = 400

# Each room with the rooms that it may import, beside itself. A room is a folder, or a module directly in the package.
# "core.sampling" is a value that messages carry, so it counts as foundation.
FOUNDATION = {"messages", "records", "errors", "clock", "config", "core.sampling"}
ACTOR_SIDE = {"core", "text", "grammar", "pipes"} | FOUNDATION
MAY_IMPORT: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "clock": set(),
    "core.sampling": {"errors", "records"},
    "config": {"errors"},
    "messages": {"errors", "records", "core.sampling"},
    "durable": set(),
    "caches": set(),
    "hub": {"durable", "formats", "errors"},
    "store": {"caches", "durable", "hub", "errors"},
    "logs": set(),
    "machine": set(),
    "progress": set(),
    "outputs": {"messages", "records", "text"},
    "prompts": {"messages", "errors"},
    "part_stream": {"outputs", "messages", "errors", "text"},
    "core": FOUNDATION - {"clock"},
    "formats": FOUNDATION,
    "adapters": {"formats"} | FOUNDATION,
    "pipes": FOUNDATION,
    "text": {"formats", "core"} | FOUNDATION,
    "grammar": FOUNDATION,
    "kernels": {"caches", "durable", "machine"} | FOUNDATION,
    "backends": {"kernels", "core"} | FOUNDATION,
    "weights": {"formats", "kernels"} | FOUNDATION,
    "models": {"backends", "kernels", "weights"} | FOUNDATION,
    "executor": {"models", "weights", "backends", "kernels", "core", "pipes", "formats", "grammar", "logs", "machine"}
    | {"adapters"}
    | FOUNDATION,
    "actors": ACTOR_SIDE,
    "house": {"actors", "caches"} | ACTOR_SIDE,
    "host_memory": {"config", "errors", "machine", "pipes"},
    "compiler": {"grammar", "messages", "errors"},
    "model_files": {"house", "formats"} | ACTOR_SIDE,
    "lookout": {"pipes"} | FOUNDATION,
    "placement": {"pipes", "config"},
    "engine": {
        "adapters",
        "compiler",
        "host_memory",
        "lookout",
        "model_files",
        "placement",
        "prompts",
        "house",
        "outputs",
        "part_stream",
        "actors",
        "store",
        "logs",
        "machine",
    }
    | ACTOR_SIDE,
    "offline": {"adapters", "engine", "prompts", "outputs", "progress", "actors", "store", "logs"} | ACTOR_SIDE,
    "server": {"adapters", "engine", "lookout", "actors", "logs"} | ACTOR_SIDE,
    "simulation": {"engine", "house", "actors", "outputs", "progress"} | ACTOR_SIDE,
    "replay": {"house", "actors"} | ACTOR_SIDE,
    "cli": {
        "adapters",
        "caches",
        "server",
        "engine",
        "simulation",
        "replay",
        "offline",
        "outputs",
        "progress",
        "formats",
        "hub",
        "store",
        "logs",
        "machine",
    }
    | ACTOR_SIDE,
    "__main__": {"cli"},
}

# The server's own rooms, each with those that it may import, beside itself and what lies in the folder of the server.
# Out there only the application, which lists the routes, knows them.
SERVER_ROOMS: dict[str, set[str]] = {
    "generate": set(),
    "openai": {"generate"},
    "responses": {"generate"},
    "anthropic": {"generate"},
    "chart": set(),
    "openapi": {"generate", "openai", "responses", "anthropic"},
}

# Single steps over a wall, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("cli", "backends.registry"): "'asyncpage backends' asks the registry itself; it is readable without torch",
    ("cli", "backends.contract"): "the question is made of the contract's values",
    ("cli", "backends.device"): "the same, for the device",
    ("cli", "executor.holding"): "'asyncpage doctor' tells what weights would take, which only loading them knows",
    ("cli", "executor.step_graph"): "the same tells of what a step is made, which only the executor's side knows",
    ("cli", "executor.step_clock"): "and measures it, on a runner of its own",
    ("cli", "executor.roofline"): "'asyncpage bench roofline' tells what steps must do, and what the machine can",
    ("cli", "kernels.native"): "'asyncpage doctor' says which native code runs; it is readable without torch",
    ("cli", "kernels.quantised"): "weights that it multiplies by as they are take what they take in the file",
    ("cli", "models.operators"): "operators are values, which it prints",
    ("cli", "house"): "the runner is given the settings that an engine would send",
    ("models", "core.plugin_group"): "families of models are plugins, found and checked like all others",
    ("grammar", "core.plugin_group"): "backends of grammars are plugins, found and checked like all others",
    ("grammar", "pipes.tether"): "the compile worker is a child process and must not outlive its parent",
    ("text", "grammar.source"): "a parser says what an answer must look like; the source of a grammar is a value",
}

# The engine's in-process launcher runs the executor's loop in a thread: the only way in from this side.
MAY_REACH_EXECUTOR = {"placement"}

# Shipped doubles may stand anywhere, so "testing" may import every room; what it must not know is told below.
FREE = {"testing", "__init__"}

TORCH = {"torch", "triton"}
TORCH_SIDE = ("executor", "models", "weights", "backends", "kernels", "testing.attention")

# A dependency has an owner: outside these rooms it is not imported.
OWNERS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("server", "cli"),
    "prometheus_client": ("server",),
    "jinja2": ("text",),
    "regex": ("text",),
    "msgpack": ("pipes",),
    "uvloop": ("cli", "engine", "offline"),
    "llguidance": ("grammar",),
    "xgrammar": ("grammar",),
    "huggingface_hub": ("hub.connection",),
    "httpx2": ("hub.connection",),
    "transformers": ("models.transformers_family", "models.transformers_attention"),
}

# Decisions are functions of their arguments: no loop, no time, no chance, no environment.
IMPURE = {"asyncio", "time", "random", "secrets", "threading", "multiprocessing", "os", "socket", "datetime", "uuid"}

# Built with Rust, or bringing what is; tests may use them.
NEVER = {
    "pydantic", "tokenizers", "safetensors", "orjson", "tiktoken", "jsonschema",
    "typer", "openai", "anthropic", "watchfiles", "cbor2", "gguf",
}  # fmt: skip

# Deserialisers that run what they read.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}

VAGUE_NAMES = re.compile(r"(util|utils|helper|helpers|common|misc|base2|manager2)")

# Written so that this file does not hold them itself.
FORBIDDEN_WORDS = re.compile(
    r"/(w[o]rk|r[o]ot|f[a]rm)/|s[u]bagent|\.l[i]brary\b|p[y]thonhosted|p[y]pi\.org|n[p]mjs\.(org|com)|d[e]b\.debian"
    r"|\bT[O]DO\b|\bF[I]XME\b|\bX[X]X\b"
)


@dataclass(frozen=True)
class Module:
    """One source file of the package: its dotted name below `asyncpage`, and the names that it imports."""

    name: str
    path: Path
    lines: int
    tree: ast.Module = field(repr=False)
    imports: frozenset[str] = field(repr=False)

    @property
    def room(self) -> str:
        return self.name if self.name in MAY_IMPORT else self.name.split(".")[0]

    @property
    def rooms_imported(self) -> Iterator[str]:
        """What it imports of this package, as dotted names below `asyncpage` that are modules."""
        for name in self.imports:
            below = name.removeprefix("asyncpage.")
            if below != name and below in NAMES:
                yield below


def _imports(tree: ast.Module) -> Iterator[str]:
    """Absolute dotted names, those inside functions too; `from a import b` is both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _read() -> list[Module]:
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        modules.append(Module(name, path, text.count("\n"), tree, frozenset(_imports(tree))))
    return modules


MODULES = _read()
NAMES = {module.name for module in MODULES}


def _names(module: Module) -> str:
    return module.name


every_module = pytest.mark.parametrize("module", MODULES, ids=_names)


def _is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith((room + ".", room + "_")) for room in rooms)


def test_every_room_has_its_rule() -> None:
    assert {module.room for module in MODULES} - FREE <= MAY_IMPORT.keys()


@every_module
def test_imports_follow_the_directions_of_the_house(module: Module) -> None:
    if module.room in FREE:
        return
    allowed = MAY_IMPORT[module.room]
    for imported in module.rooms_imported:
        room = imported if imported in MAY_IMPORT else imported.split(".")[0]
        is_own = room == module.room or (imported == "core.sampling" and module.room == "core")
        is_let_in = room == "executor" and module.name in MAY_REACH_EXECUTOR
        is_excepted = (module.room, imported) in EXCEPTIONS
        assert is_own or room in allowed or is_let_in or is_excepted, (
            f"{module.name} imports {imported}, but {module.room} may import only {sorted(allowed)}"
        )


def test_the_servers_rooms_know_what_they_may_and_the_application_alone_knows_them() -> None:
    rooms = {path.parent.name for path in (PACKAGE / "server").glob("*/__init__.py")}
    assert rooms == set(SERVER_ROOMS)
    for module in MODULES:
        if not module.name.startswith("server.") or module.name == "server.app":
            continue
        room = module.name.split(".")[1]
        may = SERVER_ROOMS.get(room, set()) | {room}
        known = {name.split(".")[1] for name in module.rooms_imported if name.startswith("server.")}
        assert known & rooms <= may, module.name


def test_actors_do_not_import_one_another() -> None:
    for module in MODULES:
        if not module.name.startswith("actors."):
            continue
        siblings = {name for name in module.rooms_imported if name.startswith("actors.")} - {module.name}
        assert siblings <= {"actors.base"}, f"{module.name} imports {sorted(siblings)}"


@every_module
def test_torch_stays_on_the_executors_side(module: Module) -> None:
    if not _is_in(module.name, TORCH_SIDE):
        assert not {name.split(".")[0] for name in module.imports} & TORCH


@every_module
def test_core_knows_no_loop_no_time_and_no_chance(module: Module) -> None:
    if module.room in ("core", "core.sampling"):
        assert not {name.split(".")[0] for name in module.imports} & (IMPURE | TORCH)


@every_module
def test_dependencies_stay_with_their_owners(module: Module) -> None:
    roots = {name.split(".")[0] for name in module.imports}
    assert not roots & NEVER, "brings Rust into the core install"
    for dependency, rooms in OWNERS.items():
        assert dependency not in roots or _is_in(module.name, rooms), f"{dependency} belongs to {rooms}"


@every_module
def test_nothing_that_is_read_is_executed(module: Module) -> None:
    assert not {name.split(".")[0] for name in module.imports} & UNSAFE
    called = {
        node.func.id for node in ast.walk(module.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"eval", "exec"}


@every_module
def test_every_module_says_what_it_is(module: Module) -> None:
    assert (ast.get_docstring(module.tree) or "").strip(), "no module docstring"


@every_module
def test_a_file_holds_one_concept(module: Module) -> None:
    assert module.lines <= MOST_LINES
    assert not VAGUE_NAMES.fullmatch(module.path.stem)


def test_no_file_of_the_repository_names_a_machine_a_registry_or_unfinished_work() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if not path.is_file():  # removed, not yet recorded
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file holds no words
        found += [f"{name}: {match.group()}" for match in FORBIDDEN_WORDS.finditer(text)]
    assert not found
