"""Divides files over folders of bounded size: each is carried to another machine by one call. Pure."""

from collections.abc import Mapping, Sequence

MIB = 2**20
CHUNK = 44 * MIB
"""the largest file [bytes]"""
FOLDER = 47 * MIB
"""what a folder holds at most [bytes]"""


def folders(sizes: Mapping[str, int], first: Sequence[str] = (), most: int = FOLDER) -> list[list[str]]:
    """Return the names of the files in each folder, the largest files first; those of `first` are in the first folder.

    `sizes` [bytes] by name. Raises ValueError if a file, or all of `first`, is larger than a folder.
    """
    filled: list[list[str]] = [list(first)] if first else []
    for name in sorted((each for each in sizes if each not in first), key=lambda each: (-sizes[each], each)):
        for folder in filled:
            if sum(sizes[each] for each in (*folder, name)) <= most:
                folder.append(name)
                break
        else:
            filled.append([name])
    for folder in filled:
        if (size := sum(sizes[each] for each in folder)) > most:
            raise ValueError(f"{', '.join(folder)}: {size} bytes, and a folder holds {most}")
    return filled
