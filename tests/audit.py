"""Audit: known weaknesses of the installed packages, by pip-audit; what `make audit` runs.

    python -m tests.audit

Exit codes: 0 no weakness is known, 1 some are, 2 no index of advisories answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

COMMAND = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json"]
NONE_KNOWN, SOME_KNOWN, NO_ANSWER = 0, 1, 2


def read_report(text: str) -> list[dict[str, Any]]:
    """Return the packages of pip-audit's report; none of a report that broke off."""
    try:
        return list(json.loads(text)["dependencies"])
    except (ValueError, LookupError, TypeError):
        return []


def summary(packages: list[dict[str, Any]]) -> tuple[str, int]:
    """Say in one sentence what is known of the packages; with it the exit code."""
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        return "no index of advisories answered; run it again where one does", NO_ANSWER
    skipped = [package["name"] for package in packages if "vulns" not in package]
    count = f"{len(audited)} packages"
    if skipped:
        count += f" ({len(skipped)} others are in no index: {', '.join(skipped)})"
    weak = [
        f"{package['name']} {package['version']} has {weakness['id']}"
        for package in audited
        for weakness in package["vulns"]
    ]
    if weak:
        return f"of {count}, {'; '.join(weak)}; install the releases that mend them", SOME_KNOWN
    return f"no weakness is known of {count}", NONE_KNOWN


def main() -> int:
    """Audit the packages of this environment, and print the sentence."""
    ended = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    sentence, code = summary(read_report(ended.stdout))
    print(f"audit: {sentence}", file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
