"""Models that follow a script, in the words of two vendors' APIs: try, read the refusal, ask, try again.

What they ask for is what they read in the tool's result, so the loop is real from end to end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from botbottle.demo.internet import Site

PAGES = "pages.example.com"
URL = f"https://{PAGES}/guide"
SECRET_OF_THE_PAGE = "the-page-was-read"
CURL = f"curl --silent --show-error --max-time 60 {URL}"
Step = tuple[str, dict[str, Any]]


class Pages(Site):
    """What the agent wants to read."""

    def do_GET(self) -> None:
        self.answer(200, f"{SECRET_OF_THE_PAGE}\n".encode())


def next_step(results: Sequence[str], *, shell: Callable[[str], Step], ask: str) -> Step | str:
    """By what the tools have answered so far: a tool call, or the last word."""
    match len(results):
        case 0 | 2:
            return shell(CURL)
        case 1:
            found = re.search(r"\{.*\}", results[0], re.DOTALL)
            arguments = json.loads(found[0])["ask"]["arguments"] if found else {}
            return ask, arguments
    return f"done: {results[-1]}"


class Model(Site):
    """Shared by the dialects: reads the request, keeps what was asked."""

    def read_json(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        body: dict[str, Any] = json.loads(self.rfile.read(length) or b"{}")
        return body

    def stream(self, events: Sequence[tuple[str | None, object]]) -> None:
        lines = []
        for name, content in events:
            text = content if isinstance(content, str) else json.dumps(content)
            lines.append((f"event: {name}\n" if name else "") + f"data: {text}\n\n")
        self.answer(200, "".join(lines).encode(), "text/event-stream")

    def do_GET(self) -> None:
        self.answer(404, b"{}", "application/json")


class AnthropicModel(Model):
    def do_POST(self) -> None:
        asked = self.read_json()
        if self.path.partition("?")[0] != "/v1/messages":
            self.answer(200, b'{"input_tokens": 1}', "application/json")
            return
        block = self._block(asked)
        if asked.get("stream"):
            self.stream(_anthropic_events(block))
        else:
            self.answer(200, json.dumps(_anthropic_message([block])).encode(), "application/json")

    def _block(self, asked: dict[str, Any]) -> dict[str, Any]:
        ask = "mcp__supervise__egress-block"
        if ask not in {tool["name"] for tool in asked.get("tools", [])}:
            return {"type": "text", "text": "ok"}
        blocks = [
            block
            for message in asked["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        results = [_flat(block.get("content")) for block in blocks if block["type"] == "tool_result"]

        def shell(command: str) -> Step:
            return "Bash", {"command": command, "description": "Read the page"}

        step = next_step(results, shell=shell, ask=ask)
        if isinstance(step, str):
            return {"type": "text", "text": step}
        return {"type": "tool_use", "id": f"toolu_{len(results)}", "name": step[0], "input": step[1]}


def _flat(content: object) -> str:
    """A result's text: some clients send a string, some a list of blocks."""
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content if isinstance(block, dict))
    return str(content)


def _anthropic_message(content: list[dict[str, Any]]) -> dict[str, Any]:
    used = bool(content) and content[0]["type"] == "tool_use"
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": content,
        "stop_reason": "tool_use" if used else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def _anthropic_events(block: dict[str, Any]) -> list[tuple[str | None, object]]:
    used = block["type"] == "tool_use"
    empty = {**block, "input": {}} if used else {**block, "text": ""}
    delta = (
        {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        if used
        else {"type": "text_delta", "text": block["text"]}
    )
    stop = {"stop_reason": "tool_use" if used else "end_turn", "stop_sequence": None}
    started = {**_anthropic_message([]), "stop_reason": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


class OpenAiModel(Model):
    def do_POST(self) -> None:
        asked = self.read_json()
        step = self._step(asked)
        if isinstance(step, str):
            delta: dict[str, Any] = {"role": "assistant", "content": step}
        else:
            name, arguments = step
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {
                "index": 0,
                "id": f"call_{len(asked['messages'])}",
                "type": "function",
                "function": function,
            }
            delta = {"role": "assistant", "tool_calls": [call]}
        finish = "stop" if isinstance(step, str) else "tool_calls"
        self.stream(
            [
                (None, self._chunk(delta, None)),
                (None, self._chunk({}, finish)),
                (None, "[DONE]"),
            ]
        )

    def _step(self, asked: dict[str, Any]) -> Step | str:
        ask = "supervise_egress-block"
        if ask not in {tool["function"]["name"] for tool in asked.get("tools", [])}:
            return "ok"
        results = [_flat(message["content"]) for message in asked["messages"] if message["role"] == "tool"]

        def shell(command: str) -> Step:
            return "bash", {"command": command, "description": "Read the page"}

        return next_step(results, shell=shell, ask=ask)

    def _chunk(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m1",
            "choices": [choice],
        }
