"""What pytest loads: the critical strengths that `assert_safe` finds, below the tests and in junit files."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from shakeproof import asserting

if TYPE_CHECKING:
    from shakeproof.proof import Result

PREFIX = "shakeproof: "


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Answers become properties of the test that asks: pytest writes these to junit files, xdist hands them over."""

    def note(result: Result) -> None:
        item.user_properties.append((f"{PREFIX}{result.record.asked}", f"{result.status}, {result.sentence}"))

    asserting.listeners.append(note)
    yield
    asserting.listeners.remove(note)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every answer, under its test."""
    by_test: dict[str, list[tuple[str, object]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):  # a test has several: the last of them knows all answers
                properties = [(key, value) for key, value in report.user_properties if key.startswith(PREFIX)]
                by_test[report.nodeid] = max(by_test.get(report.nodeid, []), properties, key=len)
    if any(by_test.values()):
        terminalreporter.section("shakeproof")
    for test, properties in by_test.items():
        for key, value in properties:
            terminalreporter.line(f"{test}  {key.removeprefix(PREFIX)}: {value}")
