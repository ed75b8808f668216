"""Commands of a page, as a test runs them."""

import pytest

from support.cli.page_commands import Block, blocks, first_words, section

PAGE = """# Page

## First

```
a <<'END'
b
END
```

Words.

```console
$ c --all
d  1
   e  2

```

## Second

```
f
```
"""


def test_blocks_come_in_their_order_with_what_they_show():
    here = blocks(section(PAGE, "First"))
    assert here == [Block("a <<'END'\nb\nEND\n"), Block("c --all", "d  1\n   e  2\n\n")]
    assert blocks(section(PAGE, "Second")) == [Block("f\n")]


def test_numbers_are_no_first_words():
    assert first_words("d  1\n   e  2\n\n") == ["d", "e"]


def test_a_heading_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="## Third"):
        section(PAGE, "Third")
