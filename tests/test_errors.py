from __future__ import annotations

import pytest

from localsgd.errors import unknown_name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("triangel", "unknown method 'triangel'; there are local, streaming"),
        ("locl", "unknown method 'locl'; nearest: local. There are local, streaming"),
        ("", "unknown method ''; there are local, streaming"),
    ],
)
def test_a_name_is_suggested_only_if_it_is_near(given: str, said: str) -> None:
    assert str(unknown_name("method", given, ("local", "streaming"))) == said
