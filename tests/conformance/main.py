"""Runs the suites and reports. See scripts/conformance."""

import argparse
import signal
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import calls
import databases
import stress
from world import World

HERE = Path(__file__).parent
SUITES = {
    "pjdfstest": calls.pjdfstest,
    "fsx": calls.fsx,
    "stress-ng": stress.stress_ng,
    "fio": stress.fio,
    "dbench": stress.dbench,
    "sqlite": databases.sqlite,
    "postgresql": databases.postgresql,
}
PASS, FAIL, SKIP = "pass", "fail", "skip"


@dataclass
class Report:
    """What one suite gave: for each test and place (passed, detail); passed is None for a skip."""

    results: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)

    def add(self, test, place, passed, detail=""):
        word = SKIP if passed is None else PASS if passed else FAIL
        self.results.setdefault(test, {})[place] = (word, detail)

    def count(self, place, word):
        return sum(1 for result in self.results.values() if result.get(place, ("",))[0] == word)


def judge(suite, report, exclusions):
    """Returns what is wrong, and the exclusions that were used."""
    wrong, used = [], set()
    for test, places in report.results.items():
        native, ours = places.get("native", (FAIL, "")), places.get("stockade", (FAIL, "not run"))
        if native[0] == PASS and ours[0] != PASS:
            if (suite, test) in exclusions:
                used.add((suite, test))
            else:
                wrong.append((test, ours))
    if not report.count("stockade", PASS):
        wrong.append(("(all)", (FAIL, "nothing passed")))
    return wrong, used


def table(suite, report, wrong, used, exclusions):
    lines = [f"## {suite}", "", "| | tests | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    for place, label in (("native", "plain directory"), ("stockade", "Stockade")):
        counts = [report.count(place, word) for word in (PASS, FAIL, SKIP)]
        seconds = report.seconds.get(place, 0)
        lines.append(f"| {label} | {sum(counts)} | {counts[0]} | {counts[1]} | {counts[2]} | {seconds:.0f} |")
    lines.append("")
    for test, (word, detail) in wrong:
        lines.append(f"- **{test}**: {word}, passes natively")
        lines += ["", *("      " + line for line in detail.strip().splitlines()[-25:]), ""]
    for name in sorted(used):
        lines.append(f"- {name[1]}: excluded: {exclusions[name]}")
    both = [test for test, places in report.results.items()
            if places.get("native", ("",))[0] == FAIL == places.get("stockade", ("",))[0]]
    if both:
        lines.append(f"- fails natively too: {', '.join(both)}")
    return "\n".join(lines) + "\n"


def ended(number, _frame):
    """Lets the mounts and processes of whatever is under way go with the exception."""
    sys.exit(128 + number)


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    parser = argparse.ArgumentParser(prog="scripts/conformance")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less than five minutes")
    size.add_argument("--full", action="store_true", help="1,000,000 fsx operations, 10 minutes of stress-ng, ...")
    parser.add_argument("--out", type=Path, help="write the tables here, too")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    with open(HERE / "exclusions.toml", "rb") as file:
        exclusions = {(one["suite"], one["test"]): one["reason"] for one in tomllib.load(file).get("exclusion", [])}
    failed, text = [], []
    for suite in arguments.suites or SUITES:
        print(f"== {suite}", file=sys.stderr, flush=True)
        report = Report()
        with World() as world:
            start = time.monotonic()
            SUITES[suite](world, report, arguments.full)
            alive, kind = world.alive(), world.kind
        wrong, used = judge(suite, report, exclusions)
        if not alive:
            wrong.append(("(server)", (FAIL, "it died")))
        unused = {name for name in exclusions if name[0] == suite} - used
        text.append(table(suite, report, wrong, used, exclusions))
        if unused:
            text.append(f"- exclusions without need: {', '.join(sorted(test for _, test in unused))}\n")
        print(text[-1] if not unused else text[-2] + text[-1], flush=True)
        print(f"== {suite}: {time.monotonic() - start:.0f} s on {kind}", file=sys.stderr, flush=True)
        if wrong:
            failed.append(suite)
    if arguments.out:
        arguments.out.write_text("# Conformance\n\n" + "\n".join(text))
    if failed:
        sys.exit(f"not as good as the plain directory: {', '.join(failed)}")


if __name__ == "__main__":
    main()
