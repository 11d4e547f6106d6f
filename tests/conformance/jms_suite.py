"""The JUnit suite in tests/conformance/jms: what it has, how it is built and run, and what came out.

Law: Maven is asked only when something changed, first without the network; a run is one Java process, which ends with ours.
"""

import asyncio
import contextlib
import hashlib
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.runtime.supervisor import ChildProcess

PROJECT = Path(__file__).parent / "jms"
SOURCES = PROJECT / "src" / "test"
TARGET = PROJECT / "target"
PACKAGE = "lockstep.jms"
FRAMES = "org.apache.qpid.jms.provider.amqp.FRAMES"
"""The client's logger of frames."""
BUILD_SECONDS = 600.0
"""With an empty Maven repository everything comes over the network."""
RUN_SECONDS = 600.0
"""About a minute on an idle machine; tests have time-outs of their own."""


class CannotBuild(Exception):
    """Something outside of this project is missing: Java, Maven, or what Maven would have to fetch."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one invocation of a JUnit method ended."""

    test: str
    """`Class.method`."""
    name: str
    """The same with the types and the number of its arguments, if it has any."""
    seconds: float
    failure: str = ""
    skipped: str | None = None
    """Why."""


def declared_tests() -> list[str]:
    """`Class.method` of every test in the sources."""
    test = re.compile(r"@(?:Parameterized)?Test\b.*?\bvoid (\w+)\(", re.DOTALL)
    return [
        f"{path.stem}.{method}"
        for path in sorted(SOURCES.rglob("*Test.java"))
        for method in test.findall(path.read_text())
    ]


async def build() -> str:
    """Compiles what changed; returns the class path. Raises `CannotBuild`, and AssertionError if the sources are wrong."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise CannotBuild(f"{program} is not installed (Debian: openjdk-17-jdk-headless and maven)")
    stamp, path_file = TARGET / "stamp", TARGET / "classpath.txt"
    wanted = _fingerprint()
    if not (stamp.exists() and stamp.read_text() == wanted and _all_exist(path_file)):
        # Maven compares times, and a checkout may make a changed source older than its class.
        shutil.rmtree(TARGET, ignore_errors=True)
        output = await _maven("--offline", path_file)
        if output is not None:
            output = await _maven("--batch-mode", path_file)
        if output is not None:
            assert "COMPILATION ERROR" not in output, output
            raise CannotBuild(f"Maven cannot fetch what the suite needs: {output[-2000:]}")
        stamp.write_text(wanted)
    return f"{TARGET / 'test-classes'}:{path_file.read_text()}"


class Run:
    """One Java process, from its start to its report; what it says is in the directory."""

    def __init__(
        self, class_path: str, properties: Mapping[str, str], directory: Path, *, is_traced: bool
    ) -> None:
        """`properties`: system properties of the suite, without their prefix. `is_traced`: frames go to the console log."""
        self._directory = directory
        self._java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path]
        self._java += [f"-Dlockstep.{name}={value}" for name, value in properties.items()]
        if is_traced:
            self._java += ["-Dlockstep.frames=true", f"-Dorg.slf4j.simpleLogger.log.{FRAMES}=trace"]

    async def results(self, tests: Iterable[str]) -> list[Result]:
        """Runs these tests (`Class.method`)."""
        methods = "|".join(re.escape(test.replace(".", "#")) for test in tests)
        command = [
            *self._java,
            *("org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--details=tree"),
            *("--disable-ansi-colors", f"--reports-dir={self._directory}", f"--select-package={PACKAGE}"),
            f"--include-methodname={re.escape(PACKAGE)}\\.({methods})",
        ]
        java = ChildProcess("java", command, self._directory / "console.log")
        await java.start()
        try:
            await asyncio.wait_for(java.exited(), RUN_SECONDS)
        except TimeoutError:
            words = java.last_words(50)
            raise AssertionError(f"the suite took more than {RUN_SECONDS:g} s: {words}") from None
        finally:
            await java.kill()
        report = self._directory / "TEST-junit-jupiter.xml"
        assert report.exists(), java.last_words(100)
        return [_result(case) for case in ElementTree.parse(report).getroot().iter("testcase")]


def _result(case: ElementTree.Element) -> Result:
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '')}"
    failures = [*case.findall("failure"), *case.findall("error")]
    skipped = case.find("skipped")
    return Result(
        name.partition("(")[0],
        name,
        float(case.get("time", "0")),
        "\n".join(failure.text or failure.get("message") or "failed" for failure in failures),
        None if skipped is None else (skipped.text or "skipped").strip().splitlines()[0],
    )


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted([PROJECT / "pom.xml", *(one for one in SOURCES.rglob("*") if one.is_file())]):
        digest.update(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _all_exist(path_file: Path) -> bool:
    return path_file.exists() and all(Path(jar).exists() for jar in path_file.read_text().split(":"))


async def _maven(option: str, path_file: Path) -> str | None:
    """None if it built; otherwise what it said."""
    goals = ("test-compile", "dependency:build-classpath", f"-Dmdep.outputFile={path_file}")
    process = await asyncio.create_subprocess_exec(
        *("mvn", "--quiet", "--batch-mode", "--no-transfer-progress", option, *goals),
        cwd=PROJECT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(BUILD_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        output = f"nothing within {BUILD_SECONDS:g} s".encode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return None if process.returncode == 0 else output.decode(errors="replace")
