"""How native code comes to be built: once, of what it is named after, never half; and what is told when it cannot."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpage.kernels import native
from asyncpage.kernels.variant import VARIANTS, Processor, choose_variant, read_processor

BUILD = """
import sys
from pathlib import Path
from asyncpage.kernels.native import build
sys.stdin.readline()
print(build(Path(sys.argv[1]), sources=Path(sys.argv[2])).state)
"""

COUNTING = """#!/bin/sh
case "$*" in *--version) ;; *) echo run >> {log} ;; esac
exec {compiler} "$@"
"""


ENDLESS = """#!/bin/sh
case "$*" in *--version) echo endless; exit ;; esac
touch "$TMPDIR/of its own"
sleep 1000 &
echo $$ $! > {told}
wait
"""


def sources_in(folder: Path) -> Path:
    """Sources that compile in no time."""
    folder.mkdir()
    (folder / "linear.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
    )
    return folder


def script(path: Path, text: str) -> dict[str, str]:
    path.write_text(text)
    path.chmod(0o755)
    return {"PATH": os.environ["PATH"], "CXX": str(path)}


def counting(folder: Path) -> tuple[dict[str, str], Path]:
    """A compiler that keeps a log of its runs, as an environment, and the log."""
    compiler = shutil.which("c++") or shutil.which("g++")
    return script(folder / "cxx", COUNTING.format(log=folder / "log", compiler=compiler)), folder / "log"


def test_two_processes_that_need_it_at_once_compile_it_once(tmp_path: Path) -> None:
    environment, log = counting(tmp_path)
    sources = sources_in(tmp_path / "sources")
    command = [sys.executable, "-c", BUILD, str(tmp_path / "native"), str(sources)]
    processes = [
        subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == [b"built\n", b"built\n"]
    assert log.read_text() == "run\n"
    assert sorted(path.suffix for path in (tmp_path / "native").iterdir()) == ["", ".so"]


def test_it_is_built_again_only_when_sources_compiler_or_flags_are_others(tmp_path: Path) -> None:
    environment, log = counting(tmp_path)
    sources, folder = sources_in(tmp_path / "sources"), tmp_path / "native"
    assert native.look(folder, environment=environment, sources=sources).state == "unbuilt"
    assert not folder.exists()
    first = native.build(folder, environment=environment, sources=sources)
    assert native.build(folder, environment=environment, sources=sources) == first
    assert native.look(folder, environment=environment, sources=sources) == first
    assert log.read_text() == "run\n"
    (sources / "more.hpp").write_text("// another\n")
    second = native.build(folder, environment=environment, sources=sources)
    third = native.build(folder, environment={**environment, "CXX": environment["CXX"] + " -O1"}, sources=sources)
    assert len({first.path, second.path, third.path}) == 3
    assert log.read_text() == "run\nrun\nrun\n"


def test_every_source_of_the_folder_is_in_the_library(tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "sources")
    (sources / "more.cpp").write_text(
        'extern "C" int answer();\n'
        'extern "C" __attribute__((visibility("default"))) int question() { return answer() + 1; }\n'
    )
    path = native.build(tmp_path / "native", sources=sources).path
    assert path is not None
    assert ctypes.CDLL(str(path)).question() == 43


def test_what_fails_leaves_nothing_behind_and_says_why_in_one_line(tmp_path: Path) -> None:
    sources, folder = sources_in(tmp_path / "sources"), tmp_path / "native"
    (sources / "linear.cpp").write_text("int answer( { return 42; }\n")
    found = native.build(folder, sources=sources)
    assert (found.state, found.path) == ("none", None)
    assert "error: " in found.reason
    assert "\n" not in found.reason
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    for environment, said in (
        ({"PATH": str(tmp_path)}, "there is no C++ compiler; install g++ or clang++"),
        ({"PATH": str(tmp_path), "CXX": "icpc"}, "CXX names 'icpc', which is not there; install g++ or clang++"),
        (script(tmp_path / "broken", "#!/bin/sh\nexit 3\n"), "--version fails; install g++ or clang++, or name one"),
    ):
        for ask in (native.look, native.build):
            found = ask(tmp_path / "native", environment=environment)
            assert found.state == "none"
            assert said in found.reason
    assert native.build(None).reason == "there is no folder to build it in"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "native").write_text("a file\n")
    found = native.build(tmp_path / "native", sources=sources_in(tmp_path / "sources"))
    assert found.state == "none"
    assert f"{tmp_path / 'native'} cannot be written: " in found.reason


def test_a_library_that_others_may_write_is_not_loaded_but_made_again(tmp_path: Path) -> None:
    sources, folder = sources_in(tmp_path / "sources"), tmp_path / "native"
    first = native.build(folder, sources=sources)
    assert first.path is not None
    first.path.write_bytes(b"something else")
    first.path.chmod(0o777)
    assert native.look(folder, sources=sources).state == "unbuilt"
    assert native.build(folder, sources=sources).path == first.path
    assert first.path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit", "longer"])
def test_a_damaged_library_is_not_loaded_but_made_again(tmp_path: Path, damage: str) -> None:
    sources, folder = sources_in(tmp_path / "sources"), tmp_path / "native"
    path = native.build(folder, sources=sources).path
    assert path is not None
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes({"empty": b"", "cut": whole[:middle], "one bit": flipped, "longer": whole + b"more"}[damage])
    assert native.look(folder, sources=sources).state == "unbuilt"
    assert native.build(folder, sources=sources).path == path
    assert ctypes.CDLL(str(path)).answer() == 42


def test_a_builder_that_is_killed_takes_its_compiler_along_and_what_it_left_goes_with_the_next(tmp_path: Path) -> None:
    sources, folder, told = sources_in(tmp_path / "sources"), tmp_path / "native", tmp_path / "told"
    os.mkfifo(told)
    # As compilers do, it works in a process of its own, with files of its own.
    environment = script(tmp_path / "cxx", ENDLESS.format(told=told))
    command = [sys.executable, "-c", BUILD, str(folder), str(sources)]
    with subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE) as builder:
        assert builder.stdin is not None
        builder.stdin.write(b"go\n")
        builder.stdin.flush()
        handles = [os.pidfd_open(int(pid)) for pid in told.read_text().split()]
        builder.kill()
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(2000), "it still runs"
        os.close(handle)
    assert any(path.name.startswith(".build-") for path in folder.iterdir())
    assert native.build(folder, sources=sources).state == "built"
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".so"]


def test_a_compiler_without_end_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, folder, told = sources_in(tmp_path / "sources"), tmp_path / "native", tmp_path / "told"
    environment = script(tmp_path / "cxx", ENDLESS.format(told=told))
    monkeypatch.setattr(native, "BUILD_LIMIT_S", 0.3)
    found = native.build(folder, environment=environment, sources=sources)
    assert (found.state, found.reason) == ("none", "endless failed: it took more than 0.3 s")
    assert [path.name for path in folder.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("machine", "features", "name"),
    [
        ("x86_64", {"sse2", "avx2", "fma", "f16c"}, "avx2"),
        ("x86_64", {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"}, "avx2"),
        ("x86_64", {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}, "avx512vnni"),
        ("x86_64", {"sse2", "avx2", "fma"}, None),
        ("aarch64", {"asimd", "avx2", "fma", "f16c"}, None),
        ("aarch64", {"fp", "asimd", "atomics", "fphp", "asimdhp", "asimddp", "sve"}, "neon"),
        ("aarch64", {"fp", "asimd", "atomics", "fphp", "asimdhp"}, None),
    ],
)
def test_a_variant_is_for_processors_that_have_all_it_needs(machine: str, features: set[str], name: str | None) -> None:
    found = choose_variant(Processor(machine, frozenset(features)))
    assert (found and found.name) == name


def test_features_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert read_processor(tmp_path).features == {"fpu", "avx2", "fma"}
    assert read_processor(tmp_path / "nothing").features == frozenset()
    assert [variant.name for variant in VARIANTS] == ["avx512vnni", "avx2", "neon"]


def test_the_sources_are_part_of_the_package() -> None:
    assert {path.name for path in native.SOURCES.iterdir()} >= {"linear.cpp", "blocks.hpp", "pool.hpp"}
