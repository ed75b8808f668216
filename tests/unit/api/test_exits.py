"""Exit codes are a promise to scripts."""

from rljob_api.exits import Exit


def test_the_codes_stay_what_they_are():
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "BAD_MANIFEST": 3,
        "OUT_OF_MEMORY": 4,
        "LOST_PEER": 5,
        "STALLED": 6,
        "PREEMPTED": 7,
        "BUDGET_EXHAUSTED": 8,
        "BAD_INPUT": 9,
        "DIVERGED": 10,
        "AWAY": 11,
        "NOT_FOUND": 66,
        "UNREACHABLE": 69,
        "IN_USE": 75,
        "FORBIDDEN": 77,
        "SETUP": 78,
        "INTERRUPTED": 130,
    }


def test_every_code_says_what_it_means():
    assert all(code.meaning for code in Exit)


def test_a_code_from_a_process_is_found_again():
    assert Exit(7) is Exit.PREEMPTED
