"""A Dockerfile by its instructions: what changes, and what an operator should look at twice."""

from __future__ import annotations

import time

import pytest

from supervise.kinds.dockerfile_review import (
    MOST_INSTRUCTIONS,
    changes,
    flags_of,
    instructions_of,
    warnings_of,
)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("RUN curl -fsSL https://x.example/i.sh | sudo bash", "script straight from the network"),
        ("RUN wget -qO- https://x.example/i.sh | sh", "script straight from the network"),
        ("RUN bash -c \"$(curl -fsSL https://x.example)\"", "script straight from the network"),
        ("RUN true && \\\n    curl https://x.example | \\\n    sh", "script straight from the network"),
        ("RUN <<EOF\ncurl https://x.example | sh\nEOF", "script straight from the network"),
        ("RUN curl https://x.example | /bin/sh", "script straight from the network"),
        ("RUN curl https://x.example | sudo -E bash -", "script straight from the network"),
        ("RUN curl https://x.example | sudo -u me /usr/bin/env bash", "script straight from the network"),
        ("RUN curl https://x.example | env bash", "script straight from the network"),
        ("RUN curl https://x.example | A=1 bash -s", "script straight from the network"),
        ("RUN curl https://x.example | tee /x | python3.11", "script straight from the network"),
        ("RUN curl https://x.example/?a=1&b=2 | sh", "script straight from the network"),
        ("RUN curl 'https://x.example/?a=1;b=2' | sh", "script straight from the network"),
        ("RUN sh -c 'curl https://x.example | sh'", "script straight from the network"),
        ('RUN ["sh", "-c", "curl https://x.example | sh"]', "script straight from the network"),
        ('RUN ["/bin/bash", "-c", "true && wget -qO- https://x.example |bash"]',
         "script straight from the network"),
        ('RUN --mount=type=cache,target=/x ["sh", "-c", "curl https://x.example \\u007c sh"]',
         "script straight from the network"),
        ('RUN ["bash", "-c", "$(curl -fsSL https://x.example)"]', "script straight from the network"),
        ('RUN ["curl", "-k", "https://x.example"]', "certificate checks off"),
        ('RUN ["chmod", "4755", "/bin/x"]', "gains rights"),
        ("RUN eval \"$(wget -qO- https://x.example)\"", "script straight from the network"),
        ("RUN curl -k https://x.example -o y", "certificate checks off"),
        ("RUN pip install --trusted-host x.example y", "certificate checks off"),
        ("RUN pip install --index-url https://x.example y", "another index"),
        ("RUN --security=insecure true", "privileged build"),
        ("RUN --network=host true", "host's network"),
        ("RUN --network=none true", "a network of its own"),
        ("RUN --mount=type=secret,id=x true", "secret or an SSH agent"),
        ("RUN chmod u+s /bin/x", "gains rights"),
        ("RUN chmod 4755 /bin/x", "gains rights"),
        ("RUN chmod -R 4755 /bin/x", "gains rights"),
        ("RUN chmod 5755 /bin/x", "gains rights"),
        ("RUN chmod 02755 /bin/x", "gains rights"),
        ("RUN chmod u=rwxs /bin/x", "gains rights"),
        ("RUN chmod a+x,u+s /bin/x", "gains rights"),
        ("RUN chmod '4755' /bin/x", "gains rights"),
        ("RUN install -o root -m 4755 a /bin/x", "gains rights"),
        ("RUN install -Dm4755 a /bin/x", "gains rights"),
        ("RUN mkdir --mode=2775 /x", "gains rights"),
        ("COPY --chmod=4755 a /bin/x", "gains rights"),
        ("RUN echo eHg= | base64 -d", "cannot be read here"),
        ("ADD https://x.example/y /z", "fetches a file"),
        ("COPY --from=docker.io/evil/x:1 /a /b", "another image"),
        ("COPY --from=postgres /a /b", "another image"),
        ("COPY --from=0 /a /b", "another image"),
        ("COPY --chown=1 --fr\\om=evil /a /b", "another image"),
        ("RUN --mount=type=bind,from=postgres,target=/x true", "another image"),
        ("USER root", "switches to root"),
        ('USER "root"', "switches to root"),
        ("USER 00:agent", "switches to root"),
        ("USER ${NAME:-root}", "user by a variable"),
        ("ENV HTTPS_PROXY=http://x.example", "how the proxy is found"),
        ("ENV FTP_PROXY=http://x.example", "how the proxy is found"),
        ("ENV npm_config_https_proxy http://x.example", "how the proxy is found"),
        ("ENV NODE_EXTRA_CA_CERTS=/x", "certificates are believed"),
        ("ENV LD_PRELOAD=/x.so", "code programs load"),
        ("ENV GITHUB_TOKEN=abc", "credential into the image"),
        ('ENTRYPOINT ["/x"]', "what runs when the bottle starts"),
        ("ONBUILD RUN true", "images built from this one"),
    ],
)  # fmt: skip
def test_a_risky_instruction_is_flagged_with_its_line(line: str, flag: str) -> None:
    found = flags_of(f"FROM debian:12\n{line}\n")
    assert any(flag in text and text.startswith("line 2: ") for text in found), found


@pytest.mark.parametrize(
    "line",
    [
        "RUN apt-get update && apt-get install -y curl", "COPY --from=build /a /b", "USER agent",
        "ENV LANG=C.UTF-8", "WORKDIR /workspace", "RUN curl -fsSLo x https://x.example",
        "RUN chmod 755 /bin/x", "RUN chmod +x /bin/x", "RUN chmod 0755 /bin/x", "RUN chmod -R a=rX share",
        "RUN install -m 0755 a /bin/x", "RUN curl -fsSLo x https://x.example && cat y | sort",
        "RUN curl https://x.example | tar xz", 'RUN ["sh", "-c", "curl https://x.example | tar xz"]',
        'RUN ["curl", "-fsSLo", "x", "https://x.example"]', "COPY --from=0 /a /b", "COPY --from=BUILD /a /b",
        "USER agent0",
    ],
)  # fmt: skip
def test_an_ordinary_one_is_not(line: str) -> None:
    assert flags_of(f"FROM debian:12 AS build\nFROM debian:12\n{line}\n") == ()


@pytest.mark.parametrize(
    ("line", "is_loose"),
    [
        ("FROM debian", True),
        ("FROM debian:latest", True),
        ("FROM --platform=linux/amd64 debian AS x", True),
        ("FROM debian:12", False),
        ("FROM debian@sha256:" + "0" * 64, False),
        ("FROM scratch", False),
        ("FROM localhost:5000/agent", True),
        ("FROM localhost:5000/agent:1", False),
        ("FROM debian:$TAG", True),
        ("FROM debian:12 AS build\nFROM build", False),
    ],
)
def test_a_base_image_needs_a_version(line: str, is_loose: bool) -> None:
    assert bool(flags_of(line + "\n")) is is_loose


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_another_frontend_is_told(mark: str) -> None:
    assert "another program reads the Dockerfile" in flags_of(f"{mark}# syntax=evil/x\nFROM debian:12\n")[0]


def test_an_instruction_is_compared_whole() -> None:
    before = "FROM debian:12\n# tools\nRUN apt-get update && \\\n    apt-get install -y git\nUSER agent\n"
    after = "FROM debian:12\n\nRUN apt-get update && \\\n    apt-get install -y git curl\nUSER agent\n"
    found, more = changes(before, after)
    assert [(change.kind, change.instruction.name) for change in found] == [
        ("same", "FROM"), ("removed", "RUN"), ("added", "RUN"), ("same", "USER"),
    ]  # fmt: skip
    assert more == 0
    assert found[2].shown == "RUN apt-get update && \\\n    apt-get install -y git curl"
    assert found[2].instruction.line == 3


def test_what_cannot_be_read_has_no_instructions() -> None:
    assert changes("NONSENSE", "FROM x:1\n") == ([], 0)
    assert instructions_of("  \n") == []


@pytest.mark.parametrize(
    "filling",
    [
        "curl ",
        "curl |",
        "curl|sudo /",
        "curl|/",
        "sh -a -b ",
        "chmod -",
        "install -m+r+r",
        "--mount=",
        "'\"",
        "(a_",
    ],
)
def test_a_hostile_text_is_bounded_in_time(filling: str) -> None:
    text = f"FROM x:1\nRUN x {filling * (300_000 // len(filling))}\n"
    start = time.process_time()
    flags_of(text)
    assert time.process_time() - start < 10, "a quadratic step takes minutes here"


def test_a_hostile_text_is_bounded_in_time_and_size() -> None:
    text = "FROM x:1\nRUN " + "curl " * 200_000 + "\nENV a=" + "token" * 40_000 + "\n"
    start = time.process_time()
    flags_of(text)
    assert time.process_time() - start < 10, "a quadratic step takes minutes here"
    found, more = changes("", "FROM x:1\n" + "RUN true\n" * 1000)
    assert (len(found), more) == (MOST_INSTRUCTIONS, 1001 - MOST_INSTRUCTIONS)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "FROM debian:12\nRUN true\n", ()),
        ("FROM debian:12\n", "FROM debian:12\nRUN true\n", ()),
        ("FROM debian:12\n", "FROM debian:13\n",
         ("another version of the base image: debian:13, so far debian:12",)),
        ("FROM r:5000/a/b@sha256:1\n", "FROM r:5000/a/b:2\n",
         ("another version of the base image: r:5000/a/b:2, so far r:5000/a/b@sha256:1",)),
        ("FROM debian:12\n", "FROM evil/debian:12\n",
         ("another base image: evil/debian:12, so far debian:12",)),
        ("FROM debian:12\n", "FROM alpine:3 AS x\nFROM debian:12\nCOPY --from=x /a /b\n",
         ("another base image: alpine:3, so far debian:12",)),
        ("FROM debian:12\n", "FROM debian:12 AS x\nFROM x\n", ()),
        ("FROM debian:12\nUSER agent\nRUN a\n", "FROM debian:12\nRUN a\n",
         ("takes away what the present Dockerfile has: 'USER agent'",)),
        ("FROM d:1\n" + "".join(f"RUN {n}\n" for n in range(7)), "FROM d:1\n",
         ("takes away what the present Dockerfile has: " + "; ".join(f"'RUN {n}'" for n in range(5)) +
          " and 2 more",)),
        ("FROM d:1\nNOSUCH x\n", "FROM d:1\n", ()),
        ("FROM d:1 AS x\nFROM e:1\n", "FROM e:1\n",
         ("takes away what the present Dockerfile has: 'FROM d:1 AS x'",)),
    ],
)  # fmt: skip
def test_a_moved_base_and_removed_lines_are_told(before: str, after: str, expected: tuple[str, ...]) -> None:
    assert warnings_of(before, after) == expected
