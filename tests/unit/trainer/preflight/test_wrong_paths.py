"""A path that leads to something of the wrong sort is said to, and never to be on another machine."""

from collections.abc import Callable

import pytest

from support.trainer.preflight_place import ROWS, Place


def directory_for_rows(place: Place) -> None:
    place.questions.unlink()
    place.questions.mkdir()


def link_for_rows(place: Place) -> None:
    place.questions.unlink()
    place.questions.symlink_to("gone")


def set_checkpoint(place: Place, name: str) -> None:
    place.model.rename(place.root / "away")
    (place.root / "model").write_text("") if name == "model" else (place.root / "model").symlink_to(name)


def set_replay(place: Place) -> None:
    place.spec["debug"] = {"replay": str(place.questions)}


def set_pattern(place: Place) -> None:
    place.spec["data"]["train"] = {"jsonl": str(place.root / "quest*.jsonl")}


WRONG: dict[str, tuple[Callable[[Place], object], str]] = {
    "a directory for rows": (directory_for_rows, "is a directory; one file is wanted, and neither directories nor"),
    "a link for rows": (link_for_rows, "is a link to gone, which is not there"),
    "a pattern for rows": (set_pattern, "is a pattern; one file is wanted"),
    "a file for a model": (lambda place: set_checkpoint(place, "model"), "is a file; a directory is wanted"),
    "a link for a model": (lambda place: set_checkpoint(place, "gone"), "is a link to gone, which is not there"),
    "a file for rollouts": (set_replay, "is a file; a directory is wanted"),
}


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_a_path_to_something_of_the_wrong_sort_is_a_problem(place: Place, name: str, here: bool) -> None:
    sabotage, said = WRONG[name]
    sabotage(place)
    found = place.look(here=here)
    (problem,) = found.problems
    assert said in str(problem)
    assert found.elsewhere == ()


@pytest.mark.parametrize("here", [True, False])
def test_a_file_for_a_teacher_is_a_problem(taught: Place, here: bool) -> None:
    (taught.root / "teacher").rename(taught.root / "away")
    (taught.root / "teacher").write_text("")
    (problem,) = taught.look(here=here).problems
    assert str(problem).startswith("spec.algorithm.teacher.checkpoint: ")
    assert "is a file; a directory is wanted" in str(problem)


def test_a_file_of_another_format_is_a_problem_of_its_field(place: Place) -> None:
    place.questions.write_text(str(ROWS).replace("'", '"'))
    (problem,) = place.look(here=False).problems
    assert str(problem) == (
        "spec.data.train.jsonl: not JSON lines: it is a JSON array; JSON lines have one object a line"
    )
