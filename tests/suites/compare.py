#!/usr/bin/env python3
"""Judges a suite's run through the proxy by its run against a plain server.

    compare.py --skip FILE --least N [--whole] [--again FILE] DIRECT PROXIED [DIRECT PROXIED ...]

DIRECT and PROXIED have one line for each test: `outcome<TAB>test<TAB>seconds<TAB>what its failure said`; a test that
was run again has several, and one that passed counts. What passes in DIRECT must pass in PROXIED, unless a row of the
skip file names it:

    tests | what their failure says | why they cannot pass

`tests` is `FILE::FUNCTION` without class and parameters, of all folders or with the last folder; `*` may stand in it. A row fails the run when its tests
pass (unless what they say begins with `~`: then it hangs on time or chance), when their failure says something else,
and, with --whole, when there is no such test. The run fails, too, when fewer than N passed through the proxy. With
--again, the tests to run again are written there.
Prints a line as `cargo test` does. Exit code: 0 all well, 1 not, 2 wrong usage.
"""

import argparse
import fnmatch
import re
import sys


def outcomes(path):
    found = {}
    for line in open(path, encoding="utf-8", errors="replace"):
        outcome, test, _, said = line.rstrip("\n").split("\t", 3)
        if found.get(test, ("",))[0] != "passed":
            found[test] = (outcome, said)
    return found


def short(test):
    """tests/test_asyncio/test_x.py::TestClass::test_y[z] or test_x.py::test_y::case_1 -> test_x.py::test_y"""
    parts = re.sub(r"\[.*|::case_\d.*", "", test, flags=re.S).split("::")
    return parts[0].rsplit("/", 1)[-1] + "::" + parts[-1] if len(parts) > 1 else test


def folder(test):
    """tests/test_asyncio/test_x.py::TestClass::test_y[z] -> test_asyncio"""
    return test.split("::")[0].split("/")[-2:-1]


class Row:
    def __init__(self, place, line):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3 or not all(fields):
            sys.exit(f"{place}: three fields are wanted: tests | what they say | why")
        self.place, (self.tests, self.says, self.why) = place, fields
        self.may_pass = self.says.startswith("~")
        self.says = self.says.removeprefix("~")
        self.used = self.seen = 0

    def names(self, test):
        whole = "/" in self.tests
        name = "/".join(folder(test) + [short(test)]) if whole else short(test)
        return fnmatch.fnmatchcase(name, self.tests)


def rows_of(path):
    lines = enumerate(open(path, encoding="utf-8"), 1)
    return [
        Row(f"{path}:{number}", line) for number, line in lines if line.strip() and line[0] != "#"
    ]


def judge(direct, proxied, rows):
    """Faults as (test, text), and how many passed."""
    faults, passed = [], 0
    for test, (outcome, _) in direct.items():
        named = [row for row in rows if row.names(test)]
        for row in named:
            row.seen += 1
        if outcome != "passed":
            continue
        got, said = proxied.get(test, ("did not run", ""))
        if got == "passed":
            passed += 1
        elif not named:
            faults.append((test, f"{got} through the proxy: {said[-400:]}"))
        elif not any(row.says in said for row in named):
            faults.append((test, f"does not say what {named[0].place} wants: {said[-400:]}"))
        else:
            for row in named:
                row.used += row.says in said
    return faults, passed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip", required=True)
    parser.add_argument("--least", type=int, required=True)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--again")
    parser.add_argument("runs", nargs="+")
    given = parser.parse_args()
    if len(given.runs) % 2:
        parser.error("the runs go in pairs")
    rows, faults, passed, missed = rows_of(given.skip), [], 0, 0
    for direct, proxied in zip(given.runs[::2], given.runs[1::2]):
        before, through = outcomes(direct), outcomes(proxied)
        more, count = judge(before, through, rows)
        faults += [(proxied, *fault) for fault in more]
        passed += count
        missed += sum(outcome == "passed" for outcome, _ in before.values()) - count
        print(f"{proxied}: {count} passed of {sum(o == 'passed' for o, _ in before.values())}")
    if given.again:
        with open(given.again, "w", encoding="utf-8") as again:
            again.writelines(f"{proxied}\t{test}\n" for proxied, test, _ in faults)
    wrong = [f"{proxied}: {test}: {text}" for proxied, test, text in faults]
    for row in rows:
        if row.seen and not row.used and not row.may_pass:
            wrong.append(f"{row.place}: no longer needed: {row.tests}")
        elif given.whole and not row.seen:
            wrong.append(f"{row.place}: there is no such test: {row.tests}")
    if passed < given.least:
        wrong.append(f"{passed} passed through the proxy, and {given.least} did when it was written")
    print(*wrong, sep="\n")
    word = "FAILED" if wrong else "ok"
    excused = missed - len(faults)
    print(f"test result: {word}. {passed} passed; {len(wrong)} failed; {excused} ignored")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
